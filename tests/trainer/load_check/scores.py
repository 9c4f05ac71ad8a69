"""A reward for tests."""


def brief(text: str) -> float:
    """Return a score that is highest for an empty completion."""
    return -len(text)
