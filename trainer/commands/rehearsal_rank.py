"""One rank of ``trainer rehearse``: trains a shrunken preset for two steps and measures what must hold of it."""

import gc
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.update import UpdateStatistics
from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.loop import Trainer
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.ranks import end_rank, leave_ranks
from trainer.parallel.start import make_parallel
from trainer.policy.logprobs import TokenScores
from trainer.rollouts.collect import sampling_params
from trainer.tracking.tracker import NullTracker
from trainer.types import RunContext, TrainBatch

LONG = 2000  # positions before the completion on which engine and policy are compared
_COMPARED = ("policy/loss", "optim/grad_norm")
STEPS = 2  # trained before the checkpoint; one more is trained with and without resuming from it


@dataclass(frozen=True)
class Measured:
    """Measurements of one rank."""

    engine: str
    stored: str  # dtype of the policy's weights
    reference: float | None  # largest |log-probability of the policy - of the reference| before the first update
    engine_short: float  # mean |engine's - policy's log-probability| of the completions of a step
    engine_long: float  # the same of a completion after `LONG` tokens
    ratio: float  # largest |importance ratio - 1| in the first optimizer step
    held_bytes: list[int]  # tensors that exist at the start of each step
    accuracy: list[float]  # of every evaluation
    resumed_at: int
    resumed: list[float]  # loss and gradient norm of the step after the checkpoint, resumed
    not_resumed: list[float]  # of the same step
    seconds: float


def measure(config: TrainConfig, folder: Path) -> Measured:
    """Rehearse one configuration, collectively with the other ranks.

    Raises:
        UserError: what would keep the run from going on.
    """
    started = time.perf_counter()
    trainer = _trainer(apply_overrides(config, {"optim.old_logprobs": "recompute"}), folder / "probe")
    batch = _scored(trainer)
    assert batch.rollout_logprobs is not None
    reference = batch.ref_logprobs
    found: dict[str, Any] = {
        "engine": type(trainer.engine).__name__.removesuffix("Engine").lower(),
        "stored": str(trainer.models.stored_dtype).removeprefix("torch."),
        "reference": None if reference is None else float((batch.old_logprobs - reference).abs().max()),
        "engine_short": _mean((batch.old_logprobs - batch.rollout_logprobs)[batch.completion_mask.bool()]),
        "engine_long": _engine_after_a_long_prompt(trainer),
        "ratio": _first_ratio(trainer),
    }
    trainer.close()

    trainer = _trainer(config, folder / "run")
    trainer.run_period()  # the evaluation before the first step
    held = []
    metrics: dict[str, float] = {}
    for step in range(STEPS + 1):
        gc.collect()  # tensors in reference cycles
        held.append(live_bytes())
        metrics = _compared_step(trainer)
        if step < STEPS:
            trainer.run_period()  # its evaluation and its checkpoint
            trainer.save_checkpoint()  # waits: while one is being written, a copy of the state is held
    accuracy = [value for _, value in trainer.evaluations]
    trainer.close()

    resumed = _trainer(config, folder / "run")
    resumed_at = resumed.resume()
    again = _compared_step(resumed)
    resumed.close()
    return Measured(
        **found,
        held_bytes=held,
        accuracy=accuracy,
        resumed_at=resumed_at,
        resumed=[again[name] for name in _COMPARED],
        not_resumed=[metrics[name] for name in _COMPARED],
        seconds=time.perf_counter() - started,
    )


def live_bytes() -> int:
    """Return the bytes of all tensors of this process that Python objects hold."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _compared_step(trainer: Trainer) -> dict[str, float]:
    # A prefix that an evaluation has left in vLLM's cache rounds otherwise than one that is computed.
    trainer.engine.sync_weights(trainer.models.causal_lm)
    return trainer.training_step()


def _trainer(config: TrainConfig, run_dir: Path) -> Trainer:
    context = RunContext(run_dir, run_dir.parent, "rehearsal", run_dir.name)
    return Trainer(config, context, NullTracker(), parallel=make_parallel(config))


def _scored(trainer: Trainer) -> TrainBatch:
    sample = trainer.source.next_groups(0, 1, Stopwatch())
    batch, _ = trainer.scorer.score(sample.scores.result().groups)
    trainer.source.sync_weights(trainer.models.causal_lm, Stopwatch())
    return batch


@torch.no_grad()
def _engine_after_a_long_prompt(trainer: Trainer) -> float:
    vocabulary = trainer.models.causal_lm.config.get_text_config().vocab_size
    prompt = torch.randint(3, vocabulary, (LONG,), generator=torch.Generator().manual_seed(0)).tolist()
    params = sampling_params(trainer.config.rollout, trainer.tokenizer)
    [[sample]] = trainer.engine.generate([prompt], [[1]], params)
    device = trainer.parallel.device
    ids = torch.tensor([[*prompt, *sample.token_ids]], device=device)
    mask = torch.ones(1, len(sample.token_ids), device=device)
    again: TokenScores = trainer.models.policy(ids, torch.tensor([LONG], device=device), mask)
    return _mean(again.logprobs[0].cpu() - torch.tensor(sample.logprobs))


def _first_ratio(trainer: Trainer) -> float:
    """By the optimizer step that a training step begins with, on all tokens of its update batch."""
    sample = trainer.source.next_groups(0, 1, Stopwatch())
    batch, plan = trainer.scorer.score(sample.scores.result().groups)
    batch = estimate_advantages(batch, trainer.config.algorithm, trainer.parallel.sum)
    statistics = UpdateStatistics.of(batch)
    trainer.updater.set_learning_rate(trainer.config.optim.lr)
    trainer.updater.run_pass(batch, batch.completion_mask, plan[:1], statistics, 1)
    # The largest ratio is 1 and the mean of their logarithms is 0: all of them are 1.
    largest, mean = float(statistics.ratio_max), float(statistics.tokens["approx_kl"])
    return max(abs(largest - 1), abs(mean / max(1.0, float(statistics.tokens["tokens"]))))


def _mean(difference: Tensor) -> float:
    return float(difference.abs().mean())


@record  # what ends a rank, for whoever started it
def main(folder: Path) -> None:
    """Rehearse the configurations of a folder, each in turn, and write what was found of each."""
    results: dict[str, Any] = {}
    rank = os.environ.get("RANK", "0")
    for path in sorted(folder.glob("case-*.yaml")):
        results[path.stem] = asdict(measure(load_config(str(path)), folder / path.stem))
        if rank == "0":
            path.with_suffix(".done").touch()  # for whoever waits
    leave_ranks()
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    end_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
