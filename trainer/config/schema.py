"""The configuration of one training run: every field, its unit and its default.

Unknown keys are refused. A file may start from a preset or another file with ``extends:``; ``key=value``
pairs with dotted keys override it. The resolved configuration is saved with the run, and running that file
repeats it.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from rewards import minimum
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.credentials import UrlWithoutCredentials
from trainer.config.engine_logprobs import engine_logprob_problems, lag_problems
from trainer.config.extends import resolve
from trainer.config.foreign import refuse_foreign
from trainer.config.lora import LoraConfig
from trainer.config.section import Count, NonNegative, Positive, Probability, Section
from trainer.config.yaml_document import (
    KeyPath,
    YamlDocument,
    leaf_keys,
    nearest,
    parse_value,
    read_scalars,
    submodel,
    validate,
)
from trainer.errors import ConfigError

_RENAMED = {"algorithm.name": "algorithm.advantage"}


class ModelConfig(Section):
    """Which policy to train."""

    name_or_path: str = Field("tiny", description="Hugging Face hub name or folder; `tiny` is the embedded policy")
    revision: str | None = Field(None, description="hub revision (branch, tag or commit)")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="compute dtype; auto: bfloat16 on a GPU, float32 on a CPU; master weights stay float32"
    )
    attn_implementation: str = Field("sdpa", description="attention kernel: sdpa, eager or flash_attention_2")
    packing: Literal["auto", "none", "flex_attention"] = Field(
        "auto",
        description="rows without padding, a group's prompt once; auto: in float32 on a CPU; flex_attention: also "
        "elsewhere, never run on a GPU; none: padded rows",
    )
    gradient_checkpointing: bool = Field(False, description="recompute activations in the backward pass")
    trust_remote_code: bool = Field(False, description="run Python code shipped in the model folder")
    random_weights: bool = Field(False, description="initialise from config.json alone (for measurements)")
    lora: LoraConfig = LoraConfig()
    quantization: Literal["none", "nf4"] = Field(
        "none", description="of the weights under an adapter; nf4: 4 bits, needs a GPU and bitsandbytes"
    )

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.packing == "flex_attention" and self.attn_implementation != "sdpa":
            raise ValueError(
                "packing: flex_attention is an attention kernel of its own: leave attn_implementation at sdpa, or "
                "set packing to none"
            )
        if self.quantization != "none" and self.lora.r == 0:
            raise ValueError(
                "quantised weights cannot be trained: set lora.r above 0 for an adapter, or quantization to none"
            )
        if self.quantization != "none" and self.random_weights:
            raise ValueError("random weights are not quantised: set quantization to none")
        return self


class DatasetConfig(Section):
    """Where problems come from."""

    source: str = Field("generated", description="`generated`, a parquet/jsonl/csv file, or a hub dataset name")
    name: str | None = Field(None, description="hub configuration (subset) name")
    split: str = Field("train", description="hub split, or the generator's split: train, dev or test")
    columns: dict[str, str] = Field(
        default_factory=dict, description="our field (prompt, answer, difficulty, source) -> column"
    )
    people: list[Annotated[int, Field(ge=2, le=8)]] = Field(
        [2, 3], description="people per generated Knights-and-Knaves puzzle", min_length=1
    )
    digits: list[Annotated[int, Field(ge=1, le=3)]] = Field(
        [1], description="digits of the numbers in generated additions", min_length=1
    )
    size: Count = Field(100, description="number of generated problems, all different")
    seed: int = Field(0, description="seed of the generated problems")
    limit: Count | None = Field(None, description="use only the first N problems of the source")
    weight: Positive = Field(1.0, description="share of the mixture, relative to the other sources")


def _as_dataset(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


def _as_datasets(value: Any) -> Any:
    items = [value] if isinstance(value, str | Mapping | DatasetConfig) else value
    return [_as_dataset(item) for item in items] if isinstance(items, list | tuple) else items


class EvaluationSetConfig(DatasetConfig):
    """A dataset to evaluate on, and what is done otherwise than for the other sets."""

    temperature: NonNegative | None = Field(None, description="of this set; evaluation.temperature if null")
    completions_per_problem: Count | None = Field(
        None, description="of this set; evaluation.completions_per_problem if null"
    )
    pass_at_k: Count | None = Field(None, description="k of this set's pass@k; evaluation.pass_at_k if null")


EvaluationSet = Annotated[EvaluationSetConfig, BeforeValidator(_as_dataset)]
Datasets = Annotated[list[DatasetConfig], BeforeValidator(_as_datasets), Field(min_length=1)]


class DataConfig(Section):
    """Problems to train on and how they are put to the policy."""

    task: Literal["knights_knaves", "math", "addition", "custom"] = Field(
        "knights_knaves", description="decides default prompt, prefill and column mapping"
    )
    train: Datasets = Field(
        [DatasetConfig(size=1000)], description="one training source, or a list of them with weights"
    )
    prompt_format: Literal["auto", "raw", "chat"] = Field(
        "auto", description="raw text, chat template, or chat where the tokenizer has a template"
    )
    prompt_template: str | None = Field(None, description="own template with {question}; replaces the task's")
    system_prompt: str | None = Field(None, description="system message for chat prompts; replaces the task's")
    prefill: str | None = Field(None, description="text the answer starts with; task default where null")
    max_prompt_tokens: Count = Field(1024, description="longer prompts are dropped and counted [tokens]")
    shuffle: bool = Field(True, description="new order of the problems in every epoch")
    drop_last: bool = Field(False, description="leave out the last problems of an epoch that do not fill a step")


class RewardConfig(Section):
    """How completions are scored."""

    functions: dict[str, float] = Field(
        {"knights_knaves": 1.0}, description="reward name or module:function -> weight", min_length=1
    )
    timeout_s: Positive = Field(5.0, description="limit for one completion, or one call of a batch function [s]")
    memory_mb: Count = Field(
        1024, description="memory a completion's scoring may take, beyond the process's imports [MiB]"
    )
    workers: Count = Field(1, description="scoring processes")
    failure_score: float | None = Field(
        None,
        description="score of a completion whose scoring timed out or raised; the function's minimum if null",
    )
    overlong_buffer: Annotated[int, Field(ge=0)] = Field(
        0, description="tokens before max_new_tokens over which DAPO's soft punishment rises; 0 is off [tokens]"
    )
    overlong_penalty: NonNegative = Field(1.0, description="reward taken at max_new_tokens by that punishment")
    max_failure_rate: Probability = Field(
        0.2, description="stop the run above this share of timeouts and exceptions in one step of a rank"
    )

    @model_validator(mode="after")
    def _check(self) -> "RewardConfig":
        if not any(self.functions.values()):
            raise ValueError("every weight is 0: no completion would be better than another")
        return self


class VllmConfig(Section):
    """Settings of the vLLM engine."""

    gpu_memory_utilization: Probability = Field(0.45, description="share of GPU memory for weights and KV cache")
    max_model_len: Count | None = Field(
        None, description="context length; prompt + completion limit if null [tokens]"
    )
    enforce_eager: bool = Field(False, description="no CUDA graphs")
    sleep_level: Literal[0, 1, 2] = Field(
        2,
        description="GPU memory freed while training: 0 none; 1 weights go to host memory, which the next "
        "synchronisation overwrites; 2 to nowhere",
    )
    tensor_parallel: Count = Field(1, description="ranks sharing one engine")
    max_num_seqs: Count | None = Field(
        None, description="requests decoded at one time; as many as a rank's share of a step, 512 at most, if null"
    )
    kv_cache_mb: Count | None = Field(
        None, description="KV cache [MiB]; from gpu_memory_utilization on a GPU, 256 on a CPU if null"
    )
    mode: Literal["colocate", "server"] = Field(
        "colocate", description="colocate: an engine in each rank; server: engines elsewhere, see `trainer serve`"
    )
    server_base_urls: Annotated[list[UrlWithoutCredentials], Field(min_length=1)] = Field(
        ["http://127.0.0.1:8000"], description="servers of mode server; rank r samples from number r % count"
    )
    server_weight_transfer: Literal["auto", "http", "nccl"] = Field(
        "auto",
        description="how weights reach the servers: http everywhere, nccl between GPUs; auto: nccl on GPUs",
    )
    server_timeout_s: Positive = Field(240.0, description="how long to wait for a server to come up [s]")


class RolloutConfig(Section):
    """How completions are sampled."""

    engine: Literal["auto", "transformers", "vllm"] = Field(
        "auto", description="auto: vllm where a GPU and vLLM are present, else transformers"
    )
    prompts_per_step: Count = Field(64, description="prompts of one step, over all ranks")
    group_size: Count = Field(8, description="completions per prompt")
    dynamic_sampling: bool = Field(
        False, description="replace groups whose completions all score alike by further prompts (DAPO)"
    )
    max_sampling_rounds: Annotated[int, Field(ge=2)] = Field(
        5, description="dynamic sampling: after so many rounds the batch is filled with what was dropped"
    )
    lag: Literal[0, 1] = Field(
        0,
        description="updates that the sampling weights are behind (staleness; one step off-policy); with 1 and "
        "vllm.mode server the next step's completions are sampled while this one updates",
    )
    temperature: Positive = Field(0.7, description="sampling temperature, also of every log-probability")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="nucleus mass kept")
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="tokens kept; 0 keeps all")
    min_p: Probability = Field(0.0, description="drop tokens below this share of the largest probability")
    max_new_tokens: Count = Field(4096, description="completion limit [tokens]")
    stop_token_ids: list[int] = Field(default_factory=list, description="stop tokens besides the tokenizer's EOS")
    max_batch_tokens: Count | None = Field(
        None,
        description="KV cache of the transformers engine [tokens]; 131072 on a CPU, what fits on a GPU if null",
    )
    vllm: VllmConfig = Field(VllmConfig(), description="settings of the vLLM engine")

    @property
    def uses_servers(self) -> bool:
        """Whether vLLM samples in processes of its own, beside the update."""
        return self.engine != "transformers" and self.vllm.mode == "server"


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: Positive = Field(1e-6, description="learning rate")
    betas: tuple[Probability, Probability] = Field((0.9, 0.999), description="AdamW betas")
    eps: Positive = Field(1e-8, description="AdamW epsilon")
    weight_decay: NonNegative = Field(0.01, description="AdamW weight decay")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="after warm-up")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(0, description="training steps of linear warm-up")
    max_grad_norm: Positive = Field(1.0, description="gradient clipping norm")
    update_batch_size: Count = Field(256, description="completions per optimizer step, over all ranks")
    tokens_per_microbatch: Count = Field(
        16384, description="most tokens of one forward-backward, padding counted where there is any"
    )
    old_logprobs: Literal["recompute", "rollout"] = Field(
        "recompute",
        description="of the policy before the update: recompute them, or take the engine's, which saves a forward",
    )
    kept_forward_tokens: Annotated[int, Field(ge=0)] = Field(
        16384, description="tokens whose forward before the first update is reused in it; costs memory, 0 is off"
    )
    logits_chunk_mb: Count | None = Field(
        None, description="float32 logits that exist at one time [MiB]; 128 on a CPU, 1024 on a GPU if null"
    )


class ParallelConfig(Section):
    """Several ranks training one model, started by torchrun, `accelerate launch` or a sweep."""

    strategy: Literal["none", "ddp", "deepspeed"] = Field(
        "none", description="none: one process; ddp: whole copies; deepspeed: ZeRO"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        2, description="deepspeed shards: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters"
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        "none", description="deepspeed: keep the optimizer's shards, or those of the parameters too, in CPU memory"
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        "auto", description="auto: a GPU where there is one; cuda: stop where there is none; cpu: leave GPUs alone"
    )
    timeout_s: Count = Field(600, description="a rank waits this long for the others before it gives up [s]")

    @model_validator(mode="after")
    def _check(self) -> "ParallelConfig":
        lowest = {"none": 0, "optimizer": 1, "parameters": 3}[self.offload]
        if self.offload != "none" and self.strategy != "deepspeed":
            raise ValueError(f"offload {self.offload} needs strategy: deepspeed")
        if self.zero_stage < lowest:
            raise ValueError(f"offload {self.offload} needs zero_stage {lowest} or higher")
        return self


class EvaluationConfig(Section):
    """Measuring the policy while it trains."""

    every_steps: Count = Field(20, description="training steps between evaluations")
    at_start: bool = Field(True, description="evaluate before the first step")
    sets: dict[str, EvaluationSet] = Field(
        {"dev": EvaluationSetConfig(split="dev", size=100)},
        description="name -> dataset; the first is `eval/accuracy`",
    )
    temperature: NonNegative = Field(0.0, description="0 is greedy")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="nucleus mass kept")
    completions_per_problem: Count = Field(1, description="completions whose mean is a problem's accuracy")
    pass_at_k: Count | None = Field(None, description="k of pass@k; completions_per_problem if null")
    max_new_tokens: Count | None = Field(None, description="completion limit; the rollout's if null [tokens]")

    def of_set(self, name: str) -> "EvaluationConfig":
        """These settings with those of one set in their place."""
        own = self.sets[name]
        if own.completions_per_problem is not None and own.pass_at_k is None:
            changes: dict[str, Any] = {"pass_at_k": None}  # that of the others may be more than this set has
        else:
            changes = {}
        for key in ("temperature", "completions_per_problem", "pass_at_k"):
            if getattr(own, key) is not None:
                changes[key] = getattr(own, key)
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check(self) -> "EvaluationConfig":
        for own in (self, *map(self.of_set, self.sets)):
            if own.pass_at_k is not None and own.pass_at_k > own.completions_per_problem:
                raise ValueError(
                    f"pass@{own.pass_at_k} needs at least {own.pass_at_k} completions of a problem: raise "
                    "completions_per_problem or lower pass_at_k"
                )
        return self


class CheckpointConfig(Section):
    """What is kept on disk."""

    every_steps: Count = Field(20, description="training steps between checkpoints")
    keep_last: Count = Field(2, description="newest checkpoints kept")
    keep_best: bool = Field(True, description="also keep the checkpoint with the best eval/accuracy")


class TrackingConfig(Section):
    """MLflow."""

    uri: UrlWithoutCredentials | None = Field(
        None, description="tracking URI; MLFLOW_TRACKING_URI, else SQLite in the runs folder"
    )
    experiment: str | None = Field(None, description="experiment name; the run's or sweep's name if null")
    offline: bool = Field(False, description="write only metrics.jsonl; `trainer upload` sends it later")
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        default_factory=list,
        description="where else metrics go, of tensorboard, wandb, trackio (pip install them)",
    )
    completions: Annotated[int, Field(ge=0)] = Field(8, description="sampled completions logged per evaluation")
    system_metrics: bool = Field(
        True, description="also log what the first rank's machine does, as MLflow's system metrics; not offline"
    )
    tags: dict[str, str] = Field(default_factory=dict, description="MLflow tags of the run")


class DiagnosticsConfig(Section):
    """Metrics of the update by token probability."""

    bands: bool = Field(True, description="advantage, gradient, entropy, KL and clipping by band of probability")
    every_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="steps between measurements of what a step did to its tokens (a forward pass); 0 is never"
    )


class TrainConfig(Section):
    """One training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    max_steps: Count | None = Field(None, description="training steps (rollout batches); epochs decide if null")
    epochs: Positive = Field(1.0, description="passes over the training problems")
    seed: int = Field(0, description="seed of data order, rollouts and random weights", ge=0)

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        for problem in (*lag_problems(self), *engine_logprob_problems(self)):
            raise ValueError(problem)
        if self.rollout.dynamic_sampling and self.rollout.group_size == 1:
            raise ValueError("a group of one has no spread: set rollout.dynamic_sampling to false")
        if self.reward.overlong_buffer > self.rollout.max_new_tokens:
            raise ValueError("reward.overlong_buffer must be at most rollout.max_new_tokens")
        if self.algorithm.advantage == "maxrl" and minimum(self.reward.functions) < 0:
            raise ValueError(
                "maxrl divides by a group's mean reward, and these reward.functions can be negative: set "
                "algorithm.advantage to grpo, or score from 0 on"
            )
        if self.model.quantization != "none" and self.parallel.strategy == "deepspeed":
            raise ValueError(
                "DeepSpeed wants weights of one dtype, and model.quantization makes two: set parallel.strategy to "
                "none or ddp, or model.quantization to none"
            )
        if not self.evaluation.sets:
            raise ValueError("evaluation.sets is empty: name at least one dataset")
        if self.checkpoint.every_steps % self.evaluation.every_steps and self.checkpoint.keep_best:
            raise ValueError("to keep the best, make checkpoint.every_steps a multiple of evaluation.every_steps")
        return self


def load_config(
    spec: str, overrides: Sequence[str] | Mapping[str, Any] = (), relative_to: Path = Path()
) -> TrainConfig:
    """Resolve a preset name or file, its ``extends:`` chain, its variant and the overrides.

    Args:
        spec: preset name or path of a YAML file; with ``:VARIANT`` one of its variants.
        overrides: ``key=value`` strings (values in YAML) or a mapping of dotted keys to values.
        relative_to: the folder that a relative path starts from.

    Raises:
        ConfigError: with file, line, key and the nearest valid key; or a file of another program.
        MissingError: a named file does not exist.
    """
    document = resolve(spec, _is_section, relative_to)
    refuse_foreign(document, "run")
    config = validate(TrainConfig, document)
    changes = overrides if isinstance(overrides, Mapping) else dict(map(parse_override, overrides))
    return apply_overrides(config, changes) if changes else config


def apply_overrides(config: TrainConfig, changes: Mapping[str, Any], source: str = "override") -> TrainConfig:
    """A copy of ``config`` with dotted keys replaced, validated as a whole."""
    data = config.model_dump(mode="json")
    for key, value in changes.items():
        _set_dotted(data, key, value, source)
    return validate(TrainConfig, YamlDocument(data, {}, source))


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``key=value`` and read the value as YAML.

    Raises:
        ConfigError: no ``=``, or a value that is not YAML.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(
            f"not an override: {text}", "command line", "write key=value, e.g. algorithm.ar_alpha=0.3"
        )
    parsed = parse_value(value, f"command line, key {key}")
    return key, read_scalars(parsed) if parsed == value else parsed  # what is quoted stays text


def current_key(key: str) -> str:
    """The name that a dotted key has now; other than the given one where the key was renamed."""
    return _RENAMED.get(key, key)


def check_key(key: str, source: str = "override") -> None:
    """Refuse a dotted key that no field of ``TrainConfig`` has.

    Raises:
        ConfigError: names the nearest valid key.
    """
    parts = key.split(".")
    model: type[BaseModel] | None = TrainConfig
    for depth, part in enumerate(parts):
        if model is None:
            return  # inside a free mapping such as reward.functions
        if part not in model.model_fields:
            valid = [".".join([*parts[:depth], name]) for name in model.model_fields]
            if depth == 0 or model is TrainConfig:
                valid = dotted_keys()
            raise ConfigError(f"unknown key {key}", f"{source}, key {key}", nearest(key, valid), key)
        annotation = model.model_fields[part].annotation
        model = annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def dotted_keys() -> list[str]:
    """All dotted keys of the configuration that hold a value."""
    return leaf_keys(TrainConfig)


def value_of(config: TrainConfig, key: str) -> Any:
    """The value of a dotted key."""
    return reduce(getattr, key.split("."), config)


def save_config(config: TrainConfig, path: Path) -> None:
    """Write the resolved configuration as YAML; running that file repeats the run."""
    path.write_text(dump_config(config), encoding="utf-8")


def dump_config(config: TrainConfig) -> str:
    """The resolved configuration as YAML text."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _set_dotted(data: dict[str, Any], key: str, value: Any, source: str) -> None:
    key = current_key(key)
    check_key(key, source)
    *parents, last = key.split(".")
    place: Any = data
    for depth, part in enumerate(parents, start=1):
        place = place.setdefault(part, {})
        if isinstance(place, list) and len(place) == 1 and key.split(".")[depth] in DatasetConfig.model_fields:
            place = place[0]  # the only source of data.train
        if not isinstance(place, dict):
            whole = ".".join(parents[:depth])
            raise ConfigError(
                f"{key}: {whole} is one value", f"{source}, key {key}", f"set {whole} as a whole", key
            )
    place[last] = value


def _is_section(path: KeyPath) -> bool:
    # A free mapping (datasets, reward functions, tags, variants) is replaced whole.
    return (
        path[0] in TrainConfig.model_fields
        and path != ("evaluation", "sets")
        and submodel(TrainConfig, path) is not None
    )
