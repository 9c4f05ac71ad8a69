from typing import ClassVar

import pytest

from sweep.record.folder import SweepFolder
from sweep.search.trial_report import TrialReport
from sweep.space.file import load_space
from sweep.trials import trainable
from sweep.trials.trainable import TrialPlan, bind_plan
from tests.sweep.harness import SEVERAL_RANKS, write_space
from trainer.attempt import newest_attempt


def test_the_trials_own_process_takes_no_share_of_a_core(tmp_path):
    resources = {"gpus_per_trial": 2, "workers_per_trial": 2, "cpus_per_worker": 3}
    spec = load_space(write_space(tmp_path / "s.yaml", resources=resources, trainer=SEVERAL_RANKS))
    plan = TrialPlan(spec, SweepFolder(tmp_path, "s"))
    placement = plan.placement()
    assert placement.head_cpus == 0
    assert placement.bundles == [{"CPU": 3, "GPU": 1}, {"CPU": 3, "GPU": 1}]
    assert placement.strategy == "STRICT_PACK"


class Ranks:
    """A group of ranks whose calls fail as ``fails`` says, in its second trial unless
    ``always``.
    """

    fails: ClassVar[dict[str, Exception]] = {}
    always = False
    started = 0
    pids = (1,)

    def __init__(self, *_, **__):
        type(self).started += 1
        self.trials = 0

    def call(self, method, *_, **__):
        self.trials += method == "build"
        if method in self.fails and (self.always or self.trials > 1):
            raise self.fails[method]
        return (
            [TrialReport(2, 0.5, 1, 2, finished=True)]
            if method == "train_until_evaluation"
            else [0]
        )

    def kill(self):
        pass


@pytest.mark.parametrize(
    ("fails", "always", "counts"),
    [
        ({"build": RuntimeError("NCCL error")}, False, False),
        (
            {"train_until_evaluation": RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")},
            False,
            False,
        ),
        (
            {"train_until_evaluation": RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")},
            True,
            True,
        ),
        ({"train_until_evaluation": RuntimeError("NCCL error")}, False, True),
    ],
)
def test_what_the_trial_before_left_in_its_ranks_is_no_failure_of_a_trial(
    fails, always, counts, tmp_path, monkeypatch
):
    ranks = type("TheseRanks", (Ranks,), {"fails": {}})
    monkeypatch.setattr(trainable, "WorkerGroup", ranks)
    monkeypatch.setattr(trainable, "get_current_placement_group", object)
    folder = SweepFolder(tmp_path, "s")
    folder.root.mkdir(exist_ok=True)
    spec = load_space(write_space(tmp_path / "s.yaml"))
    trial = object.__new__(bind_plan(TrialPlan(spec, folder)))
    trial.setup({"configuration": 0, "seed": 0, "overrides": {}, "attempt": 1})
    assert trial._assignment.context.window == spec.objective.window
    assert trial._assignment.context.passed_checks == folder.passed_checks
    assert trial.step()["finished"]
    ranks.fails = fails
    ranks.always = always
    assert trial.reset_config({"configuration": 1, "seed": 0, "overrides": {}, "attempt": 1})
    if counts:
        with pytest.raises(RuntimeError):
            trial.step()
    else:
        assert trial.step()["finished"]
    assert ranks.started == (1 if counts and not always else 2)


def test_an_attempt_that_cannot_shut_out_the_one_before_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(trainable, "WorkerGroup", Ranks)
    monkeypatch.setattr(trainable, "get_current_placement_group", object)
    folder = SweepFolder(tmp_path, "s")
    trial = object.__new__(
        bind_plan(TrialPlan(load_space(write_space(tmp_path / "s.yaml")), folder))
    )
    folder.root.mkdir(exist_ok=True)
    folder.trial("c000-s0").parent.touch()  # where no number can be written
    trial.setup({"configuration": 0, "seed": 0, "overrides": {}, "attempt": 2})
    assert "storage" in trial.step()
    folder.trial("c000-s0").parent.unlink()
    trial.setup({"configuration": 0, "seed": 0, "overrides": {}, "attempt": 2})
    assert trial.step()["finished"] and newest_attempt(folder.trial("c000-s0")) == 2
    trial.setup({"configuration": 0, "seed": 0, "overrides": {}, "attempt": 1})
    stopped = trial.step()
    assert stopped["stopped"] and "(2) of c000-s0" in stopped["storage"].what
