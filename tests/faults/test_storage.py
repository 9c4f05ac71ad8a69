"""Faults of disk and tracking interrupt a sweep; they are no results of its trials."""

import json

import mlflow
import pytest

from tests.faults.chaos import fill
from tests.sweep.harness import (
    event_log,
    finish,
    history,
    metrics,
    results,
    running,
    states,
    sweep,
    wait_until,
    write_space,
)
from tests.trainer.tracking.store import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_full_or_small_disk_costs_no_trial(disk, tmp_path):
    here = ["--runs-dir", disk]
    folder = disk / "fake"
    faults = disk / "faults.json"
    faults.write_text(json.dumps({"c000-s0": {"diverge_at": 3}}))
    space = write_space(tmp_path / "space.yaml", limits={"max_concurrent": 1, "max_failures": 0})

    ballast = fill(disk)
    code, _, err = sweep("run", space, *here, "--offline", "--cpus", 2)
    assert code == 4, err
    assert (
        "error: cannot write the sweep's folder: No space left on device [not-written]\nwhere: "
        in err
    )
    assert f"{folder}/lock, 0 MiB free" in err
    assert not (folder / "space.lock.yaml").exists()

    # nothing is left of the first attempt that stood in the way
    ballast.write_bytes(bytes(8 * 2**20))
    code, out, err = sweep("run", space, *here, "--offline", "--cpus", 2)
    assert code == 4, err
    assert "[no-room-for-checkpoints]" in out and "c000-s0" in out
    assert not (folder / "trials").exists()

    ballast.unlink()
    with running("resume", "fake", *here, "--cpus", 2, step_s=2.0) as process:
        wait_until(
            lambda: len(history(folder, "c001-s0", "step")) > 0,
            what="the second trial's first step",
        )
        fill(disk)
        code, out, err = finish(process)
    assert code == 4, err
    assert "No space left on device" in out and "1 failed" in out
    assert "Traceback" not in out + err
    assert out.splitlines()[-1] == f"python -m sweep resume fake --cpus 2 --runs-dir {disk}"
    assert states(folder) == {"c000-s0": "FAIL"}

    ballast.unlink()
    faults.unlink()
    code, out, err = sweep("resume", "fake", *here, "--cpus", 2, "--retry-failed")
    assert code == 0, err
    assert "retrying: c000-s0" in out
    ends = [record["state"] for record in event_log(folder) if record["event"] == "result"]
    assert ends == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert history(folder, "c000-s0", "resume")[-1]["step"] == 2
    for trial in ("c000-s0", "c001-s0", "c002-s0"):
        assert [line["step"] for line in metrics(folder, trial)] == [1, 2, 3, 4]


def test_trials_begin_and_end_and_have_their_report_while_mlflow_is_away(tmp_path):
    folder = tmp_path / "fake"
    here = ["--runs-dir", tmp_path]
    server = Server(tmp_path / "server")
    server.start()
    space = write_space(
        tmp_path / "space.yaml",
        trainer={"preset": "tiny_kk", "overrides": {"max_steps": 4, "tracking.uri": server.uri}},
        search={"sampler": "random", "configurations": 0},
        limits={"max_concurrent": 1, "max_failures": 0},
    )
    try:
        with running("run", space, *here, "--cpus", 2, step_s=1.0, report=True) as process:
            wait_until(lambda: len(history(folder, "c000-s0", "step")) > 0, what="the first step")
            server.kill()
            code, out, err = finish(process)
        assert code == 4, err
        assert states(folder) == {f"c00{number}-s0": "COMPLETE" for number in range(2)}
        assert "[records-not-sent]" in out and "c000-s0, c001-s0" in out
        assert f"python -m sweep resume fake --runs-dir {tmp_path}" in out
        report = {path.name for path in (folder / "report").iterdir()}
        assert report == {"report.html", "trials.csv", "results.json.gz", "best.yaml"}

        server.start()
        code, out, err = sweep("resume", "fake", *here, "--cpus", 2, report=True)
        assert code == 0, out + err
        assert (folder / "report" / "report.html").is_file()
        client = mlflow.MlflowClient(server.uri)
        runs = client.search_runs([client.get_experiment_by_name("fake").experiment_id])
        trials = {
            run.data.tags["loptune.trial"]: run for run in runs if "loptune.trial" in run.data.tags
        }
        assert sorted(trials) == sorted(results(folder))
        assert {run.info.status for run in runs} == {"FINISHED"}
        for run in trials.values():
            points = client.get_metric_history(run.info.run_id, "rollout/reward")
            assert {point.step for point in points} == {1, 2, 3, 4}
    finally:
        server.kill()
