"""Ray's own processes die under a running sweep: it says so, ends, and goes on after `sweep
resume`.
"""

import time

import pytest

from sweep.driver.guard import sweep_processes
from sweep.record.folder import sweep_folder
from tests.sweep.harness import (
    finish,
    history,
    metrics,
    results,
    running,
    states,
    sweep,
    wait_until,
    wait_until_gone,
    write_space,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_dead_daemon_ends_the_sweep_soon_and_costs_no_trial(tmp_path):
    folder = tmp_path / "fake"
    here = ["--runs-dir", tmp_path]
    arguments = ["run", write_space(tmp_path / "space.yaml"), *here, "--offline", "--cpus", 2]

    def steps():
        return sum(
            len(history(folder, trial.name, "step")) for trial in (folder / "trials").glob("*")
        )

    for daemon, named in (("raylet", "raylet at"), ("gcs_server", "control server at")):
        before = steps()
        with running(*arguments, step_s=1) as process:
            wait_until(lambda before=before: steps() > before, what="a step")
            (victim,) = (process for process in sweep_processes(folder) if process.name() == daemon)
            victim.kill()
            begin = time.monotonic()
            code, _, err = finish(process, timeout=200)
            print(f"{daemon}: ended after {time.monotonic() - begin:.1f} s")
            assert code == 4, err
            assert f"error: Ray's {named}" in err
            assert (
                err.splitlines()[-1]
                == f"next:  python -m sweep resume fake --cpus 2 --runs-dir {tmp_path}"
            )
        wait_until_gone(sweep_folder(tmp_path, "fake"))
        arguments = ["resume", "fake", *here, "--cpus", 2]

    code, _, err = sweep(*arguments)
    assert code == 0, err
    assert set(states(folder).values()) == {"COMPLETE"}
    for trial in results(folder):
        assert [line["step"] for line in metrics(folder, trial)] == [1, 2, 3, 4]
