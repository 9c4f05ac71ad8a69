"""The rewards of a rehearsal, in a file without imports, because scoring processes import it."""


def fraction_of_e(text: str) -> float:
    """Return the fraction of the letter e, which differs between the completions of any model."""
    return text.count("e") / max(1, len(text))


def fraction_of_o(text: str) -> float:
    """Return the fraction of the letter o: a rule such as GDPO needs a second reward."""
    return text.count("o") / max(1, len(text))
