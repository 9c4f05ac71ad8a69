"""The rewards of a rehearsal, in a file that scoring processes import in no time."""


def share_of_e(text: str) -> float:
    """Differs between completions, whatever writes them."""
    return text.count("e") / max(1, len(text))


def share_of_o(text: str) -> float:
    """Differs, too: a rule such as GDPO needs two rewards."""
    return text.count("o") / max(1, len(text))
