"""Reward functions that do not work, for tests; imports nothing heavy."""


def raising(text, answer):
    raise RuntimeError("no such luck")


def raising_on_completions(text, answer):
    """Works for the answer alone, which is scored before anything is sampled."""
    if not text.endswith(answer):
        raise RuntimeError("no such luck")
    return 1.0
