"""Words in the names of columns and metrics that measure how far a run got and what it cost."""

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
