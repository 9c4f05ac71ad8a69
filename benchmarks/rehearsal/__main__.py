"""``python -m benchmarks.rehearsal PRESET``: try a preset for GPUs in small."""

import argparse
import sys

from benchmarks.rehearsal.rehearse import add_arguments, carry_out
from trainer.shell.main import run_main


def main(words: list[str]) -> int:
    """Rehearse the presets of a command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args(words)
    return run_main(lambda: carry_out(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
