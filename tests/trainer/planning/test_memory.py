import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.config.extends import preset_names
from trainer.config.schema import load_config
from trainer.planning.memory import Device, RunMemory, check_fits, footprint
from trainer.policy.adapters import add_adapter
from trainer.policy.architectures import CHUNK_BYTES, ModelSize
from trainer.policy.logprobs import LogprobModel, tokens_per_chunk

B = 10**9  # parameters
QWEN_3B = 3_085_938_688


def memory(overrides=(), ranks=1):
    return RunMemory(
        load_config("base", ["model.dtype=bfloat16", *overrides]), ModelSize({}, B), Device(), ranks
    )


def deepspeed(stage, offload="none"):
    return [
        "parallel.strategy=deepspeed",
        f"parallel.zero_stage={stage}",
        f"parallel.offload={offload}",
    ]


REFERENCE = ["algorithm.kl_coef=0.001"]


@pytest.mark.parametrize(
    ("overrides", "ranks", "gigabytes"),
    [
        # 4 weights + 4 gradients + 8 moments, + 2 the reference
        ([], 1, 16),
        ([*REFERENCE, "parallel.strategy=ddp"], 4, 18),
        # compiled like the policy, whose weights are in float32
        ([*REFERENCE, "parallel.strategy=ddp", "model.compile=layers"], 4, 20),
        (deepspeed(0), 4, 16),
        # Figure 1 of arXiv:1910.02054 with gradients of 4 bytes: 2 weights, 4 gradients, 12 of the
        # optimizer
        (deepspeed(1), 64, 2 + 4 + 12 / 64),
        (deepspeed(2), 64, 2 + (4 + 12) / 64),
        ([*REFERENCE, *deepspeed(2), "model.compile=layers"], 64, 2 + 2 + (4 + 12) / 64),
        (deepspeed(3), 64, (2 + 4 + 12) / 64),
        ([*REFERENCE, *deepspeed(3)], 4, (2 + 2 + 4 + 12) / 4),
        ([*REFERENCE, *deepspeed(2, "optimizer")], 4, 2 + 2 + 4 / 4),
        ([*REFERENCE, *deepspeed(3, "parameters")], 4, 4 / 4),
    ],
)
def test_what_a_rank_holds(overrides, ranks, gigabytes):
    assert memory(overrides, ranks).held() == gigabytes * B


def test_the_memory_of_three_billion_parameters_on_four_gpus():
    recomputed = ["model.gradient_checkpointing=true", "optim.tokens_per_microbatch=16384"]
    recomputed.append("parallel.zero_stage=2")
    memory_use = footprint(load_config("kk_3b", recomputed), 4)
    # 2 weights + 2 reference + (12 optimizer + 4 gradients) / 4, then 2.5 GB of CUDA and NCCL, and
    # vLLM's 0.40 of 80 GB
    assert memory_use.held == QWEN_3B * 8
    assert memory_use.sampling == QWEN_3B * 8 + 2.5e9 + 32e9
    # 36 layers keep their input of 16,384 x 2,048 bfloat16; the head's gradient in float32 and
    # bfloat16; twice 1 GiB of logits in float32; CUDA, a sleeping vLLM; two buckets of the size of
    # the embedding, the largest parameter, and one in float32
    microbatch = 36 * 16384 * 2048 * 2 + 151936 * 2048 * 6 + 2 * 2**30
    assert memory_use.training == QWEN_3B * 8 + microbatch + 3.5e9 + 151936 * 2048 * (2 + 2 + 4)
    assert memory_use.checkpoint == QWEN_3B * 14
    # Four ranks of 5 GB; rank 0 copies weights, all of them their optimizer state
    assert memory_use.host == 4 * 5e9 + QWEN_3B * 14
    assert memory_use.margin == 80e9 - memory_use.sampling
    # the preset's stage keeps all gradients in float32 on each rank
    stage_1 = footprint(load_config("kk_3b"), 4)
    assert stage_1.held == QWEN_3B * (2 + 2 + 4) + QWEN_3B * 12 // 4


def test_transformers_sampling_needs_a_cache_and_full_weights():
    overrides = ["rollout.engine=transformers", "rollout.prompts_per_step=4"]
    memory_use = footprint(load_config("kk_7b", overrides), 4)
    cache = 4 * 8 // 4 * (400 + 4096) * 28 * 2 * 4 * 128 * 2
    assert memory_use.sampling - memory_use.held == 2.5e9 + cache + 7_615_616_512 * 2


def test_an_adapter_alone_has_gradients_and_optimizer_state():
    memory_use = footprint(load_config("kk_3b_lora"), 1)
    # r x (inputs + outputs) of query, key, value, output, gate, up and down in 36 layers.
    adapter = 32 * 36 * ((2048 + 2048) + 2 * (2048 + 256) + (2048 + 2048) + 3 * (2048 + 11008))
    assert memory_use.held == QWEN_3B * 2 + adapter * 16  # no second model for the KL penalty
    assert memory_use.checkpoint == adapter * 12
    sharded = ["parallel.strategy=deepspeed", "parallel.zero_stage=3"]
    in_parts = footprint(load_config("kk_3b_lora", sharded), 4)
    assert in_parts.held == QWEN_3B * 2 // 4 + round(adapter * (2 + 12 + 4) / 4)
    few = footprint(load_config("kk_3b_lora", ["model.lora.target_modules=[q_proj, v_proj]"]), 1)
    assert few.checkpoint == 12 * 32 * 36 * ((2048 + 2048) + (2048 + 256))


def test_a_head_size_of_null_is_that_of_the_hidden_size():
    config = load_config("base", ["model.lora.r=8"])
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    shape |= {"intermediate_size": 128, "vocab_size": 300}
    trained = [
        RunMemory(config, ModelSize(settings, B), Device()).trained
        for settings in (shape, {**shape, "head_dim": None}, {**shape, "head_dim": 16})
    ]
    assert len(set(trained)) == 1


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_for_gpus_fits(name):
    config = load_config(name)
    if config.parallel.device == "cuda":
        gigabytes = 24 if "0.5b" in name else 80
        ranks = 4 if config.parallel.strategy == "deepspeed" else 1
        assert check_fits(config, ranks, Device(True, gigabytes * 10**9)).margin >= 0


@pytest.mark.parametrize(
    ("overrides", "ranks", "fits"), [([], 4, True), (["parallel.zero_stage=2"], 4, False)]
)
def test_a_run_that_seems_too_large_warns_once_with_a_remedy(overrides, ranks, fits, caplog):
    config = load_config("kk_7b", overrides)
    assert (check_fits(config, ranks, Device()).margin >= 0) == fits
    check_fits(config, ranks, Device(), quiet=True)
    assert len(caplog.messages) == (not fits)
    for warning in caplog.messages:
        assert all(size in warning for size in ("60.9 GB", "75.8 GB", "95.4 GB"))
        assert "parallel.strategy=deepspeed parallel.zero_stage=3" in warning


def test_strict_memory_refuses_a_run_that_does_not_fit():
    strict = {"parallel.strict_memory": True}
    with refused("does-not-fit", ConfigError, key="parallel.strict_memory"):
        check_fits(load_config("kk_7b", {**strict, "parallel.zero_stage": 2}), 4, Device())
    assert check_fits(load_config("kk_7b", strict), 4, Device()).margin >= 0


def test_a_model_whose_file_lacks_a_size_has_no_footprint():
    config = load_config("kk_3b")
    assert (
        footprint(config, 1, size=ModelSize({"model_type": "gpt2", "n_embd": 768}, 10**8)) is None
    )


def allocated_at_most(run, device):
    """Peak of what torch's allocator has given and not got back since the start, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def computed_microbatch(config, settings, device):
    """What scoring and updating on one microbatch take by arithmetic, and at most by the trainer's
    own model.
    """
    shape = AutoConfig.for_model(**settings)
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    with torch.device("meta"):
        size = ModelSize(settings, AutoModelForCausalLM.from_config(shape).num_parameters())
    memory = RunMemory(config, size, Device(device.type == "cuda"))
    with device:
        model = AutoModelForCausalLM.from_config(
            shape, dtype=dtypes[memory.module], attn_implementation="sdpa"
        )
    model.train()
    if config.model.lora.r:
        add_adapter(model, config.model.lora, dtypes[memory.stored])
        added = sum(
            parameter.numel() for name, parameter in model.named_parameters() if ".lora_" in name
        )
        assert memory.trained == added
    if config.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    chunk = tokens_per_chunk(settings["vocab_size"], device.type == "cuda")
    scorer = LogprobModel(model, 1.0, chunk, dtypes[memory.computed])
    scorer.layout = "padded"
    rows = 4
    length = config.optim.tokens_per_microbatch // rows
    ids = (
        torch.arange(rows * length, device=device)
        .remainder(settings["vocab_size"])
        .view(rows, length)
    )
    prompts = torch.ones(rows, dtype=torch.int64, device=device)
    mask = torch.ones(rows, length - 1, device=device)
    for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: setattr(parameter, "grad", None)
        )

    @torch.no_grad()
    def score():
        scorer(ids, prompts, mask, True)

    def update():
        scorer(ids, prompts, mask).logprobs.sum().backward()

    return memory.microbatch(), max(
        allocated_at_most(score, device), allocated_at_most(update, device)
    )


SIZES = {
    "model_type": "qwen2",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
MASTER_IN_OPTIMIZER = ["parallel.strategy=deepspeed", "parallel.zero_stage=1"]
MICROBATCH = [
    "data.max_prompt_tokens=1",
    "rollout.max_new_tokens=63",
    "optim.tokens_per_microbatch=256",
]


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ([*MASTER_IN_OPTIMIZER, "model.gradient_checkpointing=true"], {}),
        (MASTER_IN_OPTIMIZER, {}),
        ([*MASTER_IN_OPTIMIZER, "model.dtype=float32"], {}),
        (["model.gradient_checkpointing=true"], {"num_hidden_layers": 20}),
        ([], {"model_type": "llama", "num_hidden_layers": 20}),
        (["model.dtype=float32"], {"tie_word_embeddings": False, "vocab_size": 5000}),
        (["model.lora.r=8"], {}),
        ([*MASTER_IN_OPTIMIZER, "model.lora.r=8", "model.gradient_checkpointing=true"], {}),
        (["model.lora.r=8", "model.lora.target_modules=[q_proj, v_proj]"], {"head_dim": 64}),
    ],
)
def test_a_microbatch_takes_what_torchs_allocator_hands_out(overrides, changes, monkeypatch):
    monkeypatch.setitem(CHUNK_BYTES, False, 2**18)
    config = load_config(
        "base",
        ["model.dtype=bfloat16", "model.gradient_checkpointing=false", *MICROBATCH, *overrides],
    )
    estimated, measured = computed_microbatch(config, {**SIZES, **changes}, torch.device("cpu"))
    print(f"{estimated / 1e6:.1f} MB estimated, {measured / 1e6:.1f} MB measured")
    assert estimated == pytest.approx(measured, rel=0.2)
