"""Compare the log-probabilities computed by a run with those of the published model.

There are three comparisons, each on a few short rows and on rows beyond the model's trained length:

- the loaded policy, evaluated with plain transformers calls, with the published model;
- the training path (packed or padded rows, compiled layers, the scoring head, training mode of
  gradient checkpointing) with the loaded policy;
- the sampling path with its cache, by the engine's own log-probabilities, with the loaded policy.

If two paths differ, the path is computed again with one part disabled at a time. The error names
the part without which they agree.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from loptune.errors import ConfigError, first_line
from trainer.load_check import paths
from trainer.load_check.rows import Kind, Prompts, Row, rows_within, sample_rows, trained_length
from trainer.parallel.ranks import Parallel
from trainer.policy.adapters import adapter_disabled, has_adapter
from trainer.rollouts.engine import RolloutEngine, SamplingParams
from trainer.rollouts.transformers import evaluating

# Largest accepted mean |difference| of the log-probabilities of a row [nats]. Rounding errors stay
# below it, also in a random model with peaked distributions. Rows that attend to each other's
# tokens differ by tenths of a nat.
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}

Without = Callable[[nn.Module], AbstractContextManager[None]]


@dataclass(frozen=True)
class Part:
    """A part of a path that may be at fault."""

    name: str
    hint: str
    key: str = "model.name_or_path"


DROPOUT = Part(
    "dropout is active in training mode, which gradient checkpointing needs",
    "set model.gradient_checkpointing=false, or use a model without dropout",
    "model.gradient_checkpointing",
)
COMPILED = Part(
    "the compiled layers",
    "set model.compile=none; compiling needs a C++ compiler (apt-get install g++)",
    "model.compile",
)
PACKING = Part("packing, which concatenates rows", "set model.packing=false", "model.packing")
PACKED_ROWS = Part(
    "the packed rows of the CPU", "set model.attn_implementation=eager", "model.attn_implementation"
)
KERNEL = Part(
    "the attention kernel", "set model.attn_implementation=eager", "model.attn_implementation"
)
HEAD = Part(
    "the scoring head: the model post-processes its logits",
    "use a model without logit soft-capping or scaling, e.g. Qwen2 or Llama",
)
PADDING = Part("the padding of rows of different lengths", "use another model")
ADAPTER = Part("the adapter", "save the adapter again with peft, or merge it", "model.lora")
INACTIVE = Part(
    "the adapter does not change its outputs",
    "choose other layers with model.lora.target_modules",
    "model.lora.target_modules",
)
UNSYNCED = Part("the adapter is missing or stale", "use another rollout.engine", "rollout.engine")
WEIGHTS = Part("the loaded weights or positions", "download the model again, or use another model")
ROPE = Part(
    "its positions beyond {length}, the context length that the model was trained on",
    "lower data.max_prompt_tokens and rollout.max_new_tokens: their sum may be at most {length}",
    "rollout.max_new_tokens",
)
LONG = Part(
    "long rows", "lower data.max_prompt_tokens or rollout.max_new_tokens", "rollout.max_new_tokens"
)
BATCH = Part("the batch: prompts of different lengths", "use another rollout.engine")
CACHE = Part(
    "the KV cache, because the first token is correct and later ones are not",
    "use another rollout.engine",
    "rollout.engine",
)
ENGINE = Part(
    "the engine's weights, positions or temperature", "use another rollout.engine", "rollout.engine"
)
OTHER = Part("the model", "use another model or rollout.engine")
STOP = Part("the engine's stop tokens", "use another rollout.engine", "rollout.engine")


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The paths of a loaded run."""

    policy: nn.Module  # `LogprobModel`, wrapped by the parallel strategy
    engine: RolloutEngine
    parallel: Parallel
    bound: float  # largest accepted mean difference per row [nats]
    full_weights: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The policy's model."""
        return paths.unwrapped(self.policy).causal_lm

    @property
    def temperature(self) -> float:
        """The temperature of rollouts."""
        return paths.unwrapped(self.policy).head.temperature

    def own(self, rows: Sequence[Row]) -> list[Tensor]:
        """Compute the rows' log-probabilities with the loaded policy, as in `paths.own`.
        Collective.
        """
        with self.full_weights():
            return paths.own(self.policy, rows)


def bound_of(policy: nn.Module) -> float:
    """Return the largest difference that rounding can explain [nats]."""
    scores = paths.unwrapped(policy)
    dtype = (
        scores.causal_lm.dtype if scores.compute_dtype == torch.float32 else scores.compute_dtype
    )
    return BOUNDS[dtype]


def sample(run: Paths, prompts: Sequence[Prompts]) -> list[Row]:
    """Sample completions of all prompts, and check that a stop token ends a completion. Collective.

    Raises:
        ConfigError: the engine cannot sample from this model, or does not stop.
    """
    rows: list[Row] = []
    for of_kind in prompts:
        with _named(run, "sampling", of_kind.kind):
            rows += sample_rows(run.engine, of_kind, run.temperature)
    _raise(run, "sampling", _stop_fault(run, prompts[0], rows))
    return rows


def compare_with_published(
    run: Paths,
    rows: Sequence[Row],
    expected: Sequence[Tensor] | None,
    with_kernel: Callable[[], list[Tensor]],
) -> None:
    """Compare the loaded policy with the log-probabilities ``expected`` of the published model,
    which only one rank has. Collective.

    ``with_kernel`` computes the published model's log-probabilities with the policy's attention
    kernel, to find out whether the kernel is at fault.

    Raises:
        ConfigError: they differ; the error names the part at fault.
    """
    actual = run.own(rows)
    fault = None
    if expected is not None:
        fault = largest_difference(rows, actual, expected, run.bound)
    if not run.parallel.any(fault is not None):
        return
    tried = {}
    if has_adapter(run.causal_lm):
        with adapter_disabled(run.causal_lm):
            tried[ADAPTER] = run.own(rows)
    verdict = None
    if fault is not None and expected is not None:
        verdict = _verdict(run, rows, fault, tried, expected, WEIGHTS)
        if largest_difference(rows, actual, with_kernel(), run.bound) is None:
            verdict = KERNEL, fault[1]
    _raise(run, "the loaded policy", verdict)


def compare_scoring(run: Paths, rows: Sequence[Row]) -> list[Tensor]:
    """Compare the training path with the loaded policy; return the policy's log-probabilities.
    Collective.

    Raises:
        ConfigError: they differ, or the path does not run on this machine; the error names the part
            at fault.
    """
    with _named(run, "the loaded policy"):
        expected = run.own(rows)
    try:
        actual = paths.scored(run.policy, rows)
    except Exception as error:
        raise _failure(run, rows, error) from error
    fault = largest_difference(rows, actual, expected, run.bound)
    if not run.parallel.any(fault is not None):
        return expected
    within = rows_within(rows, trained_length(run.causal_lm.config))
    is_long_only = within is not None and (
        largest_difference(within, paths.scored(run.policy, within), run.own(within), run.bound)
        is None
    )
    tried = {}
    for part, without in _scoring_parts(run).items():
        with without(run.policy):
            tried[part] = paths.scored(run.policy, rows)
    tried[PADDING] = [paths.scored(run.policy, [row])[0] for row in rows]
    verdict = None
    if fault is not None:
        verdict = _verdict(run, rows, fault, tried, expected, HEAD)
        if is_long_only:
            verdict = _rope(run), fault[1]
    _raise(run, "scoring", verdict)
    return expected


def compare_adapter(run: Paths, prompts: Prompts) -> list[Row]:
    """Compare scoring and sampling with an adapter that changes the outputs; return the rows.
    Collective.

    Raises:
        ConfigError: the adapter has no effect, or a path ignores it.
    """
    rows = sample_rows(run.engine, prompts, run.temperature)
    expected = compare_scoring(run, rows)
    with adapter_disabled(run.causal_lm):
        without = run.own(rows)
    verdict = None
    if largest_difference(rows, without, expected, 0.0) is None:
        verdict = INACTIVE, 0.0
    _raise(run, "the loaded policy", verdict)
    fault = largest_difference(rows, paths.sampled(rows), expected, run.bound)
    verdict = None
    if fault is not None:
        verdict = UNSYNCED, fault[1]
    _raise(run, "sampling", verdict)
    return rows


def compare_sampling(run: Paths, rows: Sequence[Row], expected: Sequence[Tensor]) -> None:
    """Compare the engine's log-probabilities of its completions with those of the loaded policy.
    Collective.

    Raises:
        ConfigError: they differ; the error names the part at fault.
    """
    fault = largest_difference(rows, paths.sampled(rows), expected, run.bound)
    if not run.parallel.any(fault is not None):
        return
    short = [row for row in rows if row.kind == "short"]
    alone: list[Row] = []
    for row in short:
        prompts = Prompts("short", [row.prompt], [1], len(row.completion))
        alone += sample_rows(run.engine, prompts, run.temperature)
    alone_expected = run.own(alone)
    within: list[Row] = []
    for row in rows_within(short, trained_length(run.causal_lm.config)) or []:
        prompts = Prompts("short", [row.prompt], [1], len(row.completion))
        within += sample_rows(run.engine, prompts, run.temperature)
    is_long_only = bool(within) and (
        largest_difference(within, paths.sampled(within), run.own(within), run.bound) is None
    )
    verdict = None
    if fault is not None:
        kind, nats = fault
        first = [(a[:1] - b[:1]).abs() for a, b in zip(paths.sampled(rows), expected, strict=True)]
        if kind != "short":
            verdict = _long_part(run, kind), nats
        elif is_long_only:
            verdict = _rope(run), nats
        elif float(torch.cat(first).max()) <= run.bound:
            verdict = CACHE, nats
        elif largest_difference(alone, paths.sampled(alone), alone_expected, run.bound) is None:
            verdict = BATCH, nats
        else:
            verdict = ENGINE, nats
    _raise(run, "sampling", verdict)


def _scoring_parts(run: Paths) -> dict[Part, Without]:
    """Return part -> context that disables it, for the parts of the training path."""
    scores = paths.unwrapped(run.policy)
    parts: dict[Part, Without] = {}
    if any(module.training for module in scores.causal_lm.modules()):
        parts[DROPOUT] = evaluating
    if scores.compiled is not None:
        compiled = scores.compiled
        parts[COMPILED] = lambda policy: compiled.off()
    if scores.layout == "line":
        parts[PACKING] = paths.padded
    if scores.layout == "shared_prompts":
        parts[PACKED_ROWS] = paths.padded
    return parts


def _failure(run: Paths, rows: Sequence[Row], error: Exception) -> ConfigError:
    """Return the error for a training path that does not run, naming the part at fault."""
    key = "model.name_or_path"
    hint = "use another model"
    for part, without in _scoring_parts(run).items():
        try:
            with without(run.policy):
                paths.scored(run.policy, rows)
        except Exception:  # torch's compiler, kernels and the model's own code raise anything
            continue
        key = part.key
        hint = part.hint
        break
    return ConfigError(
        f"scoring of {type(run.causal_lm).__name__} does not run: {type(error).__name__}: "
        f"{first_line(error)}",
        key,
        hint,
        key=key,
        code="path-does-not-run",
    )


def _stop_fault(run: Paths, prompts: Prompts, rows: Sequence[Row]) -> tuple[Part, float] | None:
    """Sample again with a token of the first completion as the stop token. Return a fault unless
    every completion ends where that token first occurs.
    """
    stop = rows[0].completion[len(rows[0].completion) // 2]
    params = SamplingParams(
        temperature=run.temperature, max_new_tokens=prompts.new_tokens, stop_token_ids=(stop,)
    )
    seeds = [list(prompts.seeds) for _ in prompts.prompts]
    for group in run.engine.generate(prompts.prompts, seeds, params):
        for completion in group:
            ids = completion.token_ids
            is_right = stop not in ids[:-1] and (ids[-1] == stop) == (
                completion.finish_reason == "stop"
            )
            is_full = len(ids) == prompts.new_tokens or ids[-1] == stop
            if not (is_right and is_full):
                return STOP, 0.0
    return None


def largest_difference(
    rows: Sequence[Row], actual: Sequence[Tensor], expected: Sequence[Tensor], bound: float
) -> tuple[Kind, float] | None:
    """Return the first kind of row (short, boundary, long) with a mean |difference| above
    ``bound``, and the largest mean |difference| of this kind; None if there is no such kind. NaN
    counts as above any bound.
    """
    worst: dict[Kind, float] = {}
    for row, mine, theirs in zip(rows, actual, expected, strict=True):
        nats = float((mine - theirs).abs().mean())
        worst[row.kind] = max(worst.get(row.kind, 0.0), nats if nats == nats else torch.inf)
    kinds: tuple[Kind, ...] = ("short", "boundary", "long")
    for kind in kinds:
        if worst.get(kind, 0.0) > bound:
            return kind, worst[kind]
    return None


def _verdict(
    run: Paths,
    rows: Sequence[Row],
    fault: tuple[Kind, float],
    tried: dict[Part, list[Tensor]],
    expected: Sequence[Tensor],
    otherwise: Part,
) -> tuple[Part, float]:
    """Return the part at fault and the difference in nats. A part is at fault if the path agrees
    without it; ``otherwise`` is returned if there is no such part.
    """
    kind, nats = fault
    if kind == "boundary":
        return _long_part(run, kind), nats
    for part, without in tried.items():
        if largest_difference(rows, without, expected, run.bound) is None:
            return part, nats
    if kind == "long":
        return _long_part(run, kind), nats
    return otherwise, nats


def _long_part(run: Paths, kind: Kind) -> Part:
    return _rope(run) if kind == "boundary" else LONG


def _rope(run: Paths) -> Part:
    length = trained_length(run.causal_lm.config)
    return Part(ROPE.name.format(length=length), ROPE.hint.format(length=length), ROPE.key)


def _raise(run: Paths, path: str, verdict: tuple[Part, float] | None) -> None:
    """Raise, on all ranks, the verdict of the first rank that has one. Collective."""
    verdicts = [each for each in run.parallel.gather([verdict]) if each is not None]
    if not verdicts:
        return
    part, nats = verdicts[0]
    difference = f" by {nats:.3g} nats per token (allowed: {run.bound:g})" if nats else ""
    raise ConfigError(
        f"{path} of {type(run.causal_lm).__name__} is wrong{difference}: {part.name}",
        part.key,
        part.hint,
        key=part.key,
        code="paths-differ",
    )


@contextmanager
def _named(run: Paths, path: str, kind: Kind = "short") -> Iterator[None]:
    """Convert an error of the model's code, its kernels or the compiler to a ConfigError with the
    path, and with the row length if shorter rows ran.
    """
    try:
        yield
    except Exception as error:
        part = OTHER if kind == "short" else _long_part(run, kind)
        rows = "" if kind == "short" else f" for {part.name}"
        raise ConfigError(
            f"{path} of {type(run.causal_lm).__name__} does not run{rows}: "
            f"{type(error).__name__}: {first_line(error)}",
            part.key,
            part.hint,
            key=part.key,
            code="path-does-not-run",
        ) from error
