import pytest

from trainer.config.extends import find_spec, preset_names
from trainer.config.parallel import ParallelConfig
from trainer.config.schema import load_config
from trainer.errors import MissingError
from trainer.planning.memory import Device, check_fits, checkpoint_bytes, footprint, held_bytes

B = 10**9  # parameters
QWEN_3B = 3_085_938_688


@pytest.mark.parametrize(
    ("settings", "ranks", "reference", "gigabytes"),
    [
        # 4 weights + 4 gradients + 8 moments, + 2 the reference
        ({}, 1, False, 16),
        ({"strategy": "ddp"}, 4, True, 18),
        # 2 weights + 2 reference + (12 optimizer + 4 gradients) / 4
        ({"strategy": "deepspeed", "zero_stage": 2}, 4, True, 8),
        ({"strategy": "deepspeed", "zero_stage": 1}, 4, True, 11),
        ({"strategy": "deepspeed", "zero_stage": 0}, 4, False, 18),
        ({"strategy": "deepspeed", "zero_stage": 3}, 4, True, 5),
        ({"strategy": "deepspeed", "zero_stage": 2, "offload": "optimizer"}, 4, True, 5),
        ({"strategy": "deepspeed", "zero_stage": 3, "offload": "parameters"}, 4, True, 1),
    ],
)
def test_what_a_rank_holds(settings, ranks, reference, gigabytes):
    assert held_bytes(B, 2, reference, ParallelConfig(**settings), ranks) == gigabytes * B


def test_what_a_checkpoint_takes():
    assert checkpoint_bytes(B, 2, ParallelConfig()) == 12 * B  # float32 weights and moments
    # bfloat16 weights, float32 master weights and moments
    assert checkpoint_bytes(B, 2, ParallelConfig(strategy="deepspeed")) == 14 * B


def test_the_memory_of_three_billion_parameters_on_four_gpus():
    found = footprint(load_config("kk_3b"), 4)
    # 2 weights + 2 reference + (12 optimizer + 4 gradients) / 4, then CUDA's 1.5 GB and vLLM's 0.45 of 80 GB
    assert found.held == QWEN_3B * 8
    assert found.sampling == QWEN_3B * 8 + 1.5e9 + 36e9
    # 36 layers keep their input of 16,384 x 2,048 bfloat16; the head's gradient in float32 and bfloat16; 1 GiB of
    # logits in float32 and half of it in bfloat16; CUDA, a sleeping vLLM; two buckets and one in float32
    known = 36 * 16384 * 2048 * 2 + 151936 * 2048 * 6 + 1.5 * 2**30 + 2.5e9 + 5e7 * (2 + 2 + 4)
    assert QWEN_3B * 8 + known < found.training < QWEN_3B * 8 + known + 1.5e9
    assert found.checkpoint == QWEN_3B * 14
    # Four ranks of 5 GB; rank 0 copies weights, all of them their optimizer state
    assert found.host == 4 * 5e9 + QWEN_3B * 14
    assert found.margin == 80e9 - found.sampling


def test_vllm_asleep_leaves_its_memory_to_training_and_awake_does_not():
    asleep = footprint(load_config("kk_3b"), 4)
    awake = footprint(load_config("kk_3b", ["rollout.vllm.sleep_level=0"]), 4)
    assert awake.training - asleep.training == 36e9 - 1e9


def test_sampling_with_transformers_takes_a_cache_and_under_stage_3_whole_weights():
    overrides = ["rollout.engine=transformers", "rollout.prompts_per_step=4"]
    found = footprint(load_config("kk_7b", overrides), 4)
    cache = 4 * 8 // 4 * (400 + 4096) * 28 * 2 * 4 * 128 * 2
    assert found.sampling - found.held == 1.5e9 + cache + 7_615_616_512 * 2


def test_an_adapter_alone_has_gradients_and_optimizer_state():
    found = footprint(load_config("kk_3b_lora"), 1)
    # r x (inputs + outputs) of query, key, value, output, gate, up and down in 36 layers.
    adapter = 32 * 36 * ((2048 + 2048) + 2 * (2048 + 256) + (2048 + 2048) + 3 * (2048 + 11008))
    assert found.held == QWEN_3B * 2 + adapter * 16  # no second model for the KL penalty
    assert found.checkpoint == adapter * 12
    sharded = ["parallel.strategy=deepspeed", "parallel.zero_stage=3"]
    in_parts = footprint(load_config("kk_3b_lora", sharded), 4)
    assert in_parts.held == QWEN_3B * 2 // 4 + round(adapter * (2 + 12 + 4) / 4)
    few = footprint(load_config("kk_3b_lora", ["model.lora.target_modules=[q_proj, v_proj]"]), 1)
    assert few.checkpoint == 12 * 32 * 36 * ((2048 + 2048) + (2048 + 256))


PRESETS_OF_A_MODEL = [
    ("kk_0.5b", 1, 24),
    ("kk_3b", 4, 80),
    ("kk_7b", 4, 80),
    ("math_7b", 4, 80),
    ("kk_3b_lora", 1, 48),
    ("kk_3b_lora", 1, 80),
    ("kk_7b_lora", 1, 48),
    ("kk_7b_lora", 1, 80),
]


@pytest.mark.parametrize(("name", "ranks", "gigabytes"), PRESETS_OF_A_MODEL)
def test_a_presets_comment_says_what_is_simulated(name, ranks, gigabytes):
    found = footprint(load_config(name), ranks, Device(True, gigabytes * 10**9))
    text = find_spec(name).path.read_text(encoding="utf-8")
    for line in found.lines():
        assert line in text
    assert found.margin > 0.09 * found.device.total_bytes


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_for_gpus_fits(name):
    config = load_config(name)
    if config.parallel.device == "cuda":
        gigabytes = 24 if "0.5b" in name else 80
        ranks = 4 if config.parallel.strategy == "deepspeed" else 1
        assert check_fits(config, ranks, Device(True, gigabytes * 10**9)).margin >= 0


SHARD = "it fits with parallel.strategy=deepspeed parallel.zero_stage=3"
LARGE = ["optim.tokens_per_microbatch=65536", "model.gradient_checkpointing=false"]
SMALLER = "optim.tokens_per_microbatch=16384 model.gradient_checkpointing=true"


@pytest.mark.parametrize(
    ("preset", "overrides", "ranks", "words"),
    [
        ("kk_7b", ["parallel.zero_stage=2"], 4, ["94.4 GB", "60.9 GB", SHARD]),
        ("kk_7b", ["rollout.vllm.gpu_memory_utilization=0.6"], 4, ["gpu_memory_utilization=0.5"]),
        ("kk_0.5b", LARGE, 1, ["training", SMALLER]),
        ("kk_7b", [], 1, ["take more or larger GPUs, or a smaller model"]),
    ],
)
def test_what_seems_too_large_is_a_warning_with_what_to_change_and_an_error_on_request(
    preset, overrides, ranks, words, caplog
):
    assert check_fits(load_config(preset, overrides), ranks).margin < 0
    check_fits(load_config(preset, overrides), ranks, quiet=True)
    [warned] = caplog.messages
    assert all(word in warned for word in words)
    with pytest.raises(MissingError) as refused:
        check_fits(load_config(preset, [*overrides, "parallel.strict_memory=true"]), ranks)
    assert all(word in str(refused.value) for word in words)
