"""The ``sweep`` command with a trainer that has no model: ``python -m tests.sweep.fake_driver run
SPACE ...``.
"""

import os
import sys

from sweep.programs import loptune
from tests.sweep.fake_trainer import FakeProgram

if __name__ == "__main__":
    # Neither import above reaches these two: the one copies the class of the program into the
    # fields of a search space, the other must find an environment that is prepared.
    imported = {"sweep.space.spec", "ray"} & sys.modules.keys()
    assert not imported, imported
    loptune.LoptuneProgram = FakeProgram  # type: ignore[misc]
    from sweep.trials.cluster import prepare_environment

    prepare_environment("auto" if "--address" in sys.argv else None)
    from sweep.cli import main
    from sweep.driver import run

    if "LOPTUNE_NO_REPORT" in os.environ:  # which takes as long as some sweeps of fake trials
        run._write_report = lambda *_: (None, "")
    sys.exit(main())
