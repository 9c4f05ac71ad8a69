"""The driver is killed with SIGKILL amid its trials; `sweep resume` brings the sweep to its end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from sweep.driver.guard import MARKER, end_leftovers
from sweep.record.folder import sweep_folder
from tests.sweep.harness import (
    history,
    kill,
    ledger,
    metrics,
    results,
    running,
    sweep,
    wait_until,
    wait_until_gone,
    write_space,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A sweep of six trials whose driver was killed when two had ended.

    With the return code of a process that carries the sweep's marker, as what a rank starts does,
    and notices nothing.
    """
    runs = tmp_path_factory.mktemp("runs")
    folder = runs / "fake"
    every = {"max_steps": 12, "evaluation.every_steps": 2, "checkpoint.every_steps": 2}
    space = write_space(
        runs / "space.yaml", seeds=[0, 1], trainer={"preset": "tiny_kk", "overrides": every}
    )
    here = ["--runs-dir", runs, "--cpus", 2]
    deaf = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, MARKER: str(sweep_folder(runs, "fake").root)}
    )
    with running("run", space, *here, "--offline", step_s=0.15) as process:
        # Past the first checkpoint, which is at step 2, and well before the last step.
        wait_until(
            lambda: len(results(folder)) >= 2 and any(3 <= steps < 9 for steps in trained(folder)),
            what="two trials to end and another to train",
        )
        kill(process)
    deaf.wait(timeout=60)
    wait_until_gone(sweep_folder(runs, "fake"))
    code, _, err = sweep("resume", "fake", *here, step_s=0.05)
    assert code == 0, err
    return folder, deaf.returncode


def trained(folder: Path) -> list[int]:
    """Steps of each trial that has begun and not ended."""
    open_trials = [path.parent.name for path in (folder / "trials").glob("*/fake.jsonl")]
    return [
        len(history(folder, trial, "step")) for trial in open_trials if trial not in results(folder)
    ]


def test_every_trial_and_configuration_is_there_once_with_every_step(
    resumed: tuple[Path, int],
) -> None:
    folder, _ = resumed
    assert sorted(path.name for path in (folder / "trials").iterdir()) == sorted(results(folder))
    assert [result["state"] for result in results(folder).values()] == ["COMPLETE"] * 6
    for trial in results(folder):
        assert [line["step"] for line in metrics(folder, trial)] == list(range(1, 13))
    resumed_at = [
        event["step"] for trial in results(folder) for event in history(folder, trial, "resume")
    ]
    assert any(step > 0 for step in resumed_at)  # from its checkpoint
    proposed = [
        record["configuration"] for record in ledger(folder) if record["event"] == "configuration"
    ]
    assert proposed == [0, 1, 2]


def test_a_process_that_cannot_notice_it_ends_with_the_driver(resumed: tuple[Path, int]) -> None:
    assert resumed[1] == -signal.SIGKILL


def test_nothing_is_left_over(resumed: tuple[Path, int]) -> None:
    folder, _ = resumed
    assert end_leftovers(sweep_folder(folder.parent, "fake").root, wait_s=0) == 0
