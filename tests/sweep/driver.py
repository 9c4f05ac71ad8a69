"""The ``sweep`` command with a trainer that has no model: ``python -m tests.sweep.driver run SPACE ...``."""

import sys

from sweep.cli import main
from tests.sweep.fake_trainer import build

if __name__ == "__main__":
    sys.exit(main(factory=build))
