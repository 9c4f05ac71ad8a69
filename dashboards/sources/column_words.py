"""Split the names of columns and metrics into words, and list words for the progress and the cost
of a run.
"""

import re

COUNTERS = (
    "step", "steps", "timestep", "timesteps", "iter", "iters", "iteration", "iterations", "epoch",
    "epochs", "update", "updates", "token", "tokens", "sample", "samples", "example", "examples",
    "frame", "frames", "episode", "episodes", "interact", "interacts", "transition", "transitions",
    "completion", "completions",
)  # fmt: skip
UNITS_OF_TIME = ("second", "seconds", "secs", "minute", "minutes", "hour", "hours")
DURATIONS = ("time", "runtime", "walltime", "elapsed", "duration", *UNITS_OF_TIME)
COMPUTE = ("flop", "flops", "energy", "kwh", "joules", "cost", "usd", "dollars")
MEMORY = ("memory", "mb", "gb")


def parts_of(name: str) -> list[str]:
    """Return the parts of a column name, such as its folders."""
    return re.split(r"[:./]", name.strip())


def words_of(name: str) -> list[str]:
    """Return the lower-case words of a column name, without its file or folder."""
    last = parts_of(name)[-1] or name
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", last)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9±]+", spaced) if word]
