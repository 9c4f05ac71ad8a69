"""A reward of -1 and 1 without MINIMUM, which some texts break."""

import os


def right_or_wrong(text, answer):
    if text == "raise":
        raise KeyError("no such thing")
    if text == "exit":
        os._exit(3)
    values = {"right": 1.0, "wrong": -1.0, "nan": float("nan"), "huge": 1e308}
    return values[text]
