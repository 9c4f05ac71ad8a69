"""One rank of a rehearsal: train a preset at reduced size, and measure how far the results are from
the required values.
"""

import json
import math
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.update import UpdateStatistics
from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.loop import Trainer
from trainer.metrics.step import Stopwatch
from trainer.parallel.ranks import exit_rank, leave_ranks
from trainer.parallel.strategy import make_parallel
from trainer.policy.logprobs import TokenScores
from trainer.rollouts.collect import sampling_params
from trainer.run_folder import RunFolder
from trainer.tracking.tracker import NullTracker
from trainer.types import RunContext, TrainBatch

LONG = 2000  # tokens of the long prompt after which engine and policy are compared
STEPS = 2  # steps before the checkpoint; one more step is trained with and without resuming from it


def measure(config: TrainConfig, folder: Path) -> dict[str, float]:
    """Rehearse a configuration, and return how far each result is from its required value.
    Collective.

    - ``reference``: largest |difference| between the log-probabilities of policy and reference
      before the first update.
    - ``short``, ``long``: mean |difference| between the log-probabilities of engine and policy: on
      completions, and on one completion after a prompt of `LONG` tokens.
    - ``ratio - 1``: largest |importance ratio - 1| in the first optimizer step.
    - ``resumed``: relative difference of loss and gradient norm in the step after the checkpoint,
      between the resumed and the uninterrupted run; infinite if the run resumed from the wrong
      step, or did not learn.

    Raises:
        UserError: the full run would stop for the same reason.
    """
    trainer = _trainer(
        apply_overrides(config, {"optim.old_logprobs": "recompute"}), folder / "probe"
    )
    batch = _scored(trainer)
    assert batch.rollout_logprobs is not None
    reference = batch.old_logprobs if batch.ref_logprobs is None else batch.ref_logprobs
    measured = {
        "reference": float((batch.old_logprobs - reference).abs().max()),
        "short": _mean((batch.old_logprobs - batch.rollout_logprobs)[batch.completion_mask.bool()]),
        "long": _engine_after_a_long_prompt(trainer),
        "ratio - 1": _first_ratio(trainer),
    }
    trainer.close()

    trainer = _trainer(config, folder / "run")
    trainer.train_until_evaluation()  # the evaluation before the first step
    for _ in range(STEPS):
        compared_step(trainer)
        trainer.train_until_evaluation()  # includes an evaluation and a checkpoint
        trainer.save_checkpoint()  # waits until it is written
    first = compared_step(trainer)
    trainer.close()

    resumed = _trainer(config, folder / "run")
    right = resumed.resume() == STEPS
    again = compared_step(resumed)
    resumed.close()
    apart = max(abs(again[name] - first[name]) / max(1.0, abs(first[name])) for name in first)
    learned = right and again["optim/grad_norm"] > 0
    return measured | {"resumed": apart if learned else math.inf}


def compared_step(trainer: Trainer) -> dict[str, float]:
    """Train a step that another run can repeat, and return the metrics that are compared."""
    # Clears vLLM's prefix cache: a prefix that an evaluation left there is rounded differently from
    # a recomputed one.
    trainer.engine.sync_weights(trainer.models.causal_lm)
    metrics = trainer.training_step()
    return {name: metrics[name] for name in ("policy/loss", "optim/grad_norm")}


def _trainer(config: TrainConfig, run_dir: Path) -> Trainer:
    # vLLM starts only one engine per process, which all trainers of this rehearsal use in turn.
    context = RunContext(run_dir, run_dir.parent, "rehearsal", run_dir.name, shares_process=True)
    return Trainer(config, context, NullTracker(), parallel=make_parallel(config))


def _scored(trainer: Trainer) -> TrainBatch:
    sample = trainer.source.next_groups(0, Stopwatch())
    batch, _ = trainer.scorer.score(sample.scores.result().groups)
    trainer.source.sync_weights(trainer.models.causal_lm, Stopwatch())
    return batch


@torch.no_grad()
def _engine_after_a_long_prompt(trainer: Trainer) -> float:
    vocabulary = trainer.models.causal_lm.config.get_text_config().vocab_size
    prompt = torch.randint(
        3, vocabulary, (LONG,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    params = sampling_params(trainer.config, trainer.tokenizer)
    [[sample]] = trainer.engine.generate([prompt], [[1]], params)
    device = trainer.parallel.device
    ids = torch.tensor([[*prompt, *sample.token_ids]], device=device)
    mask = torch.ones(1, len(sample.token_ids), device=device)
    again: TokenScores = trainer.models.policy(ids, torch.tensor([LONG], device=device), mask)
    return _mean(again.logprobs[0].cpu() - torch.tensor(sample.rollout_logprobs))


def _first_ratio(trainer: Trainer) -> float:
    """Take the first optimizer step of a training step; return its largest |ratio - 1|."""
    sample = trainer.source.next_groups(0, Stopwatch())
    batch, plan = trainer.scorer.score(sample.scores.result().groups)
    batch = estimate_advantages(batch, trainer.config.algorithm, trainer.parallel.sum)
    statistics = UpdateStatistics.of(batch)
    trainer.updater.set_learning_rate(trainer.config.optim.lr)
    trainer.updater.run_pass(batch, batch.completion_mask, plan[:1], statistics, 1)
    # If the largest ratio is 1 and the mean log-ratio is 0, all ratios are 1.
    largest = float(statistics.ratio_max)
    mean = float(statistics.tokens["approx_kl"])
    return max(abs(largest - 1), abs(mean / max(1.0, float(statistics.tokens["tokens"]))))


def _mean(difference: Tensor) -> float:
    return float(difference.abs().mean())


def main(folder: Path, users: Path) -> None:
    """Rehearse the configuration in a folder and write the measurements there. ``users`` is the
    folder in which the user started the command; it may contain rules.
    """
    os.chdir(users)
    measured = measure(load_config(str(RunFolder(folder).config)), folder)
    leave_ranks()
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(measured))
    exit_rank(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
