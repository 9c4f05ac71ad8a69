import inspect

import pytest

from sweep.trials.worker import StopWatcher
from trainer.commands.progress import Progress
from trainer.progress import ProgressReport

METHODS = {name: method for name, method in vars(ProgressReport).items() if inspect.isfunction(method)}


@pytest.mark.parametrize("kind", [Progress, StopWatcher], ids=lambda kind: kind.__name__)
def test_a_run_may_tell_every_report_the_same(kind):
    assert set(METHODS) == {"phase", "completed", "step", "evaluation"}
    assert issubclass(kind, ProgressReport)
    for name, method in METHODS.items():
        parameters = inspect.signature(method).parameters
        theirs = inspect.signature(getattr(kind, name)).parameters
        assert [(p.name, p.kind, p.default) for p in theirs.values()] == [
            (p.name, p.kind, p.default) for p in parameters.values()
        ]
