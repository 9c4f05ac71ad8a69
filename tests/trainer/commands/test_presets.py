from types import SimpleNamespace

import pytest

from trainer.commands import presets
from trainer.commands.presets import memory_comment
from trainer.config.schema import TrainConfig, apply_overrides, load_config


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """One without a GPU and with 16 GB of memory."""
    monkeypatch.setattr(presets, "visible_gpus", lambda: 0)
    monkeypatch.setattr(presets, "gpu_bytes", lambda: None)
    monkeypatch.setattr(presets.psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * 10**9))


def test_a_preset_is_printed_as_a_file_with_its_memory_below(tmp_path, typed):
    printed = typed("trainer presets kk_0.5b --gpu-gb 24")
    assert " GPU with 24.0 GB" in printed
    (tmp_path / "run.yaml").write_text(printed)
    assert load_config(str(tmp_path / "run.yaml")) == load_config("kk_0.5b")


def test_presets_are_listed_with_their_first_line(typed):
    printed = typed("trainer presets").splitlines()
    assert printed[0].split() == ["name", "description", "variants"]
    assert {"base", "tiny_kk", "kk_3b"} <= {line.split(" ")[0] for line in printed}
    assert "NAME:VARIANT" in printed[-1]


def head(config, ranks=None, gpu_gb=None):
    comment = memory_comment(config, ranks, gpu_gb).splitlines()
    assert len(comment) == 4 and all(line.startswith("# ") for line in comment)
    return comment[0]


def config_of(random_policy, **changes):
    return apply_overrides(TrainConfig(), {"model.name_or_path": str(random_policy), **changes})


def test_the_device_is_the_one_the_run_will_have(random_policy, monkeypatch):
    auto = config_of(random_policy)
    on_gpus = config_of(random_policy, **{"parallel.device": "cuda"})
    assert head(auto).endswith(" CPU with 16.0 GB:")
    assert head(on_gpus).endswith(" GPU with 80.0 GB:")
    assert head(auto, gpu_gb=24).endswith(" GPU with 24.0 GB:")
    monkeypatch.setattr(presets, "visible_gpus", lambda: 2)
    monkeypatch.setattr(presets, "gpu_bytes", lambda: 48 * 10**9)
    assert head(auto) == head(on_gpus) and head(auto).endswith(" GPU with 48.0 GB:")
    on_cpu = config_of(random_policy, **{"parallel.device": "cpu"})
    assert head(on_cpu).endswith(" CPU with 16.0 GB:")


def test_deepspeed_is_shown_on_four_ranks_and_any_number_can_be_asked_for(random_policy):
    sharded = config_of(
        random_policy, **{"parallel.strategy": "deepspeed", "parallel.device": "cuda"}
    )
    assert head(sharded).startswith("# memory estimate for each of 4 ranks on a GPU")
    assert head(sharded, ranks=2).startswith("# memory estimate for each of 2 ranks on a GPU")
    assert head(sharded, ranks=1).startswith("# memory estimate for one rank on a GPU")


def test_the_memory_is_shown_with_and_without_gradient_checkpointing():
    for name, word, training in (("kk_3b", "with", "35.0 GB"), ("kk_7b", "without", "101.1 GB")):
        last = memory_comment(load_config(name), 4, 80).splitlines()[-1]
        assert f" {word} gradient checkpointing" in last
        assert (training in last) == (name == "kk_7b")
    kept = memory_comment(load_config("kk_3b"), 4, 80)
    assert "67.9 GB while training" in kept  # by the model's activations of 5,120 tokens


def test_a_model_that_is_not_here_has_no_known_size(tmp_path):
    comment = memory_comment(config_of(tmp_path / "absent"), None, None)
    assert comment.startswith("# memory: unknown") and str(tmp_path / "absent") in comment
