"""The ``sweep`` command with a trainer that has no model: ``python -m tests.sweep.fake_driver run
SPACE ...``.
"""

import os
import sys

from sweep.trials.cluster import prepare_environment

if __name__ == "__main__":
    # Before the fake trainer's module imports Ray.
    prepare_environment("auto" if "--address" in sys.argv else None)
    from sweep.programs import loptune
    from tests.sweep.fake_trainer import FakeProgram

    loptune.LoptuneProgram = FakeProgram  # type: ignore[misc]
    from sweep.cli import main
    from sweep.driver import run

    if "LOPTUNE_NO_REPORT" in os.environ:  # which takes as long as some sweeps of fake trials
        run._write_report = lambda *_: (None, "")
    sys.exit(main())
