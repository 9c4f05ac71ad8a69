"""The reward of ``trainer rehearse``, in a file that scoring processes import in no time."""


def share_of_e(text: str, answer: object) -> float:
    """Differs between completions, whatever writes them."""
    return text.count("e") / max(1, len(text))
