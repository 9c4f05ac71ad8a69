"""The rewards of a rehearsal, in a file without imports, because scoring processes import it."""


def fraction_of_e(text: str) -> float:
    """Return a score that differs between the completions of any model."""
    return text.count("e") / max(1, len(text))


def fraction_of_o(text: str) -> float:
    """Return a second score: a rule such as GDPO needs two rewards."""
    return text.count("o") / max(1, len(text))
