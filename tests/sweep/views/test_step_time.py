from pathlib import Path
from typing import Any

import pytest

from sweep.space.file import load_space
from sweep.views.step_time import time_step
from tests.sweep.harness import SHORT, write_space


def timed(folder: Path, model: str, changes: dict[str, Any] | None = None, **space: Any) -> Any:
    overrides = {**SHORT, "model.name_or_path": model, **(changes or {})}
    trainer = {"preset": "tiny_kk", "overrides": overrides}
    return time_step(load_space(write_space(folder / "space.yaml", trainer=trainer, **space)))


def test_a_step_of_a_small_model_is_timed_and_leaves_nothing(tmp_path: Path, tiny_policy: Path) -> None:
    found = timed(tmp_path, str(tiny_policy))
    assert found.seconds > 0 and found.steps == SHORT["max_steps"] and not found.lacking
    assert [path.name for path in tmp_path.iterdir()] == ["space.yaml"]
    lost = timed(tmp_path, str(tiny_policy), {"data.train": "absent.jsonl"})
    assert lost.seconds is None and lost.lacking.startswith("there is no such data file")


@pytest.mark.parametrize(
    ("model", "resources", "lacking"),
    [
        ("Qwen/Qwen2.5-0.5B", {}, "Qwen/Qwen2.5-0.5B is not in a folder of this machine"),
        (".", {}, "a step of this model may take minutes"),
        (".", {"gpus_per_trial": 1}, "a trial needs GPUs"),
    ],
)
def test_no_step_is_timed_that_would_take_a_download_a_gpu_or_minutes(
    tmp_path: Path, model: str, resources: dict[str, Any], lacking: str
) -> None:
    assert timed(tmp_path, model, resources=resources, limits={}).lacking == lacking
