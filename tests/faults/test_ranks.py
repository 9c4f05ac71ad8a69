"""One of two ranks dies, hangs or raises: one failure of the trial, which goes on from its last
checkpoint.
"""

import json

import pytest

from tests.sweep.harness import SEVERAL_RANKS, history, metrics, results, sweep, write_space

pytestmark = pytest.mark.slow

FAULTS = {
    "c000-s0": {"kill_at": 3, "rank": 1},
    "c000-s2": {"hang_at": 3, "rank": 1},
    "c000-s3": {"raise_at": 3, "rank": 1},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One configuration with four seeds: one rank is killed, none, one hangs and one raises at
    every try.
    """
    runs = tmp_path_factory.mktemp("runs")
    (runs / "faults.json").write_text(json.dumps(FAULTS))
    space = write_space(
        runs / "space.yaml",
        trainer=SEVERAL_RANKS,
        baselines=[{"algorithm.ar_alpha": 0.25}],
        search={"sampler": "random", "configurations": 0},
        seeds=[0, 1, 2, 3],
        resources={"workers_per_trial": 2},
        limits={"max_concurrent": 1, "max_failures": 1, "stall_timeout_s": 6},
    )
    code, out, err = sweep("run", space, "--runs-dir", runs, "--offline", "--cpus", 2)
    return runs / "fake", code, out, err


def test_a_killed_rank_costs_one_retry_and_changes_nothing(finished):
    folder, _, out, err = finished
    assert results(folder)["c000-s0"]["state"] == "COMPLETE", err
    assert "c000-s0  retry 1 of 1: rank 1 died" in out
    assert [event["step"] for event in history(folder, "c000-s0", "resume")] == [0, 2]
    assert [line["step"] for line in metrics(folder, "c000-s0")] == [1, 2, 3, 4]
    retried, undisturbed = (
        folder / "trials" / f"c000-s{seed}" / "checkpoints/step-4/state.json" for seed in (0, 1)
    )
    assert retried.read_text() == undisturbed.read_text()


def test_a_hanging_rank_ends_its_group_and_counts_once_a_try(finished):
    folder, code, out, _ = finished
    assert code == 1
    assert results(folder)["c000-s2"]["state"] == "FAIL"
    assert "failed: c000-s2  rank 0, 1 " in out
    assert len(history(folder, "c000-s2", "build")) == 2
    assert "retry 1 of 1: rank 0, 1 " in out


def test_the_error_of_a_rank_is_told_although_the_other_waits(finished):
    assert results(finished[0])["c000-s3"]["reason"] == "the disk caught fire"
