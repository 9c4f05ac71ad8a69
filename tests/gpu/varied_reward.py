"""A reward for random completions; imports nothing, as every scoring process imports it."""


def varied(text, answer):
    """Differs inside a group, and accepts the answer alone too."""
    return 1.0 + len(text) % 3
