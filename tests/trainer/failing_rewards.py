"""Reward functions that do not work, for tests; imports nothing heavy."""


def raising(text, answer):
    raise RuntimeError("no such luck")
