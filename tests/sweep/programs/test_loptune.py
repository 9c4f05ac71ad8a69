"""loptune's own trainer as the program of a sweep."""

import pytest

from sweep.programs.base import ResourcesSpec
from sweep.programs.loptune import LoptuneProgram
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
def test_ranks_on_gpus_stay_for_trials_that_one_engine_can_serve(changes, shares):
    program = LoptuneProgram(config=load_config("kk_3b"))
    assert program.shares_process(program.base, program.configure(changes)) is shares


def test_a_setting_is_a_model_and_a_task():
    config = load_config("tiny_kk")
    assert LoptuneProgram(config=config).setting() == ("tiny", "knights_knaves: 2, 3 people")
    files = {"data.train": [{"source": "a.parquet"}, {"source": "b.csv"}], "data.task": "math"}
    assert (
        LoptuneProgram(config=apply_overrides(config, files)).setting()[1]
        == "math: a.parquet, b.csv"
    )


def test_the_tiny_models_memory_is_known_on_a_gpu():
    program = LoptuneProgram(config=load_config("tiny_kk"))
    assert program.memory(ResourcesSpec()) is None
    shared = program.memory(ResourcesSpec(gpus_per_trial=0.5))
    assert shared.device.on_gpu
    assert shared.device.total_bytes < 80e9  # half of a GPU


def test_the_command_of_a_configuration_is_quoted(tmp_path):
    program = LoptuneProgram(config=load_config("tiny_kk"))
    path = tmp_path / "my runs" / "best.yaml"
    assert program.launch_command({}, path, 1) == f"trainer run '{path}'"
    command = program.launch_command({}, path, 2)
    assert command.startswith("torchrun --nproc-per-node 2 ") and command.endswith(f"run '{path}'")
