"""The ``sweep`` command with a trainer that has no model: ``python -m tests.sweep.fake_driver run SPACE ...``."""

import os
import sys

from sweep.cli import main
from sweep.trials.cluster import prepare_environment

if __name__ == "__main__":
    # Before the fake trainer's module imports Ray.
    prepare_environment("auto" if "--address" in sys.argv else None)
    from sweep.driver.run import Options
    from tests.sweep.fake_trainer import build

    report = "LOPTUNE_NO_REPORT" not in os.environ  # which takes as long as some sweeps of fake trials
    sys.exit(main(options=Options(factory=build, report=report)))
