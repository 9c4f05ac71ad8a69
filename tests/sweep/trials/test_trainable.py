from pathlib import Path
from typing import Any

import pytest

from sweep.space.file import load_space
from sweep.trials.trainable import TrialPlan, _shares_engine, windowed
from tests.sweep.harness import SEVERAL_RANKS, write_space
from trainer.config.schema import apply_overrides, load_config


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({"algorithm.ar_alpha": 0.3, "optim.lr": 1e-5, "seed": 3}, True),
        ({"rollout.max_new_tokens": 7}, False),
        ({"rollout.vllm.gpu_memory_utilization": 0.3}, False),
        ({"model.name_or_path": "other"}, False),
        ({"rollout.engine": "transformers", "rollout.max_new_tokens": 7}, True),
    ],
)
def test_ranks_on_gpus_stay_for_trials_that_one_engine_can_serve(changes: dict[str, Any], shares: bool) -> None:
    before = load_config("kk_3b")
    assert _shares_engine(before, apply_overrides(before, changes)) is shares


def test_the_objective_is_the_mean_of_the_last_evaluations() -> None:
    assert windowed({0: 9.0, 20: 1.0, 10: 5.0, 30: 2.0, 40: 3.0}, 3) == 2.0
    assert windowed({0: 9.0}, 3) == 9.0


def test_the_trials_own_process_takes_no_share_of_a_core(tmp_path: Path) -> None:
    resources = {"gpus_per_trial": 2, "workers_per_trial": 2, "cpus_per_worker": 3}
    spec = load_space(write_space(tmp_path / "s.yaml", resources=resources, trainer=SEVERAL_RANKS))
    plan = TrialPlan("s", "s", tmp_path, tmp_path, spec.base, spec.objective, spec.resources, tmp_path / "stop")
    placement = plan.placement()
    assert placement.head_cpus == 0
    assert placement.bundles == [{"CPU": 3, "GPU": 1}, {"CPU": 3, "GPU": 1}]
    assert placement.strategy == "STRICT_PACK"
