"""Trials of two ranks on real Ray: with the real trainer, and stopped by the scheduler."""

import json
import time

import psutil
import pytest

from sweep.record.folder import sweep_folder
from tests.run_cli import run_cli
from tests.sweep.harness import (
    SEVERAL_RANKS,
    SHORT,
    finish,
    history,
    metrics,
    results,
    running,
    wait_until,
    wait_until_gone,
    write_space,
)

pytestmark = pytest.mark.slow


def test_the_scheduler_stops_a_trial_of_two_ranks_and_the_next_starts(tmp_path):
    folder = tmp_path / "fake"
    alphas = (0.5, 0.05, 0.45)
    space = write_space(
        tmp_path / "space.yaml",
        trainer={**SEVERAL_RANKS, "overrides": {**SEVERAL_RANKS["overrides"], "max_steps": 8}},
        parameters={"algorithm.ar_alpha": {"choice": list(alphas)}},
        baselines=[{"algorithm.ar_alpha": alpha} for alpha in alphas],
        search={"sampler": "random", "configurations": 0},
        scheduler={"asha": {"grace_period": 1, "reduction_factor": 2}},
        resources={"workers_per_trial": 2},
    )
    begin = time.time()
    with running("run", space, "--runs-dir", tmp_path, "--offline", "--cpus", 2) as process:
        wait_until(lambda: len(results(folder)) == 3, what="three trials to end")
        ranks = {event["pid"] for trial in results(folder) for event in history(folder, trial)}
        ranks |= {rank["pid"] for trial in results(folder) for rank in second_rank(folder, trial)}
        wait_until(
            lambda: not any(psutil.pid_exists(pid) for pid in ranks), what="the ranks to end"
        )
        code, out, err = finish(process)
    assert code == 0, err
    # Rungs after 1, 2 and 4 evaluations: 0.05 falls below the best half at the first, 0.45 at the
    # second.
    ends = {trial: (result["state"], result["step"]) for trial, result in results(folder).items()}
    assert ends == {"c000-s0": ("COMPLETE", 8), "c001-s0": ("PRUNED", 2), "c002-s0": ("PRUNED", 4)}
    assert results(folder)["c002-s0"]["score"] == pytest.approx((0.452 + 0.454) / 2)
    assert "3 trials: 1 complete, 2 stopped early, 0 failed" in out
    assert history(folder, "c001-s0")[-1]["event"] == "close KILLED"
    # What is freed is used at once: sooner than Ray and the first ranks were there.
    start_up = history(folder, "c000-s0", "build")[0]["time"] - begin
    for stopped, following in (("c000-s0", "c001-s0"), ("c001-s0", "c002-s0")):
        started = history(folder, following, "build")[0]["time"]
        assert 0 <= started - history(folder, stopped)[-1]["time"] < start_up
    wait_until_gone(sweep_folder(tmp_path, "fake"))


def second_rank(folder, trial):
    return [
        json.loads(line)
        for line in (folder / "trials" / trial / "fake-1.jsonl").read_text().splitlines()
    ]


def test_two_ranks_of_a_trial_train_one_model(tiny_policy, tmp_path):
    small = {
        "model.name_or_path": str(tiny_policy),
        "rollout.prompts_per_step": 2,
        "rollout.max_new_tokens": 20,
        "optim.update_batch_size": 8,
        "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "size": 4}},
        "parallel.strategy": "deepspeed",
    }
    space = write_space(
        tmp_path / "space.yaml",
        trainer={"preset": "tiny_kk", "overrides": {**SHORT, **small}},
        baselines=[{"algorithm.ar_alpha": 0.1}],
        search={"sampler": "random", "configurations": 0},
        resources={"workers_per_trial": 2},
    )
    out = run_cli(
        "sweep", "run", space, "--runs-dir", tmp_path, "--offline", "--cpus", 2, timeout=250
    )
    assert out.returncode == 0, out.stdout + out.stderr
    rows = [line for line in metrics(tmp_path / "fake", "c000-s0") if "rollout/reward" in line]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    parts = (tmp_path / "fake/trials/c000-s0/checkpoints/step-4").iterdir()
    assert "model.safetensors" in {path.name for path in parts}
