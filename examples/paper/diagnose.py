"""Which tokens move the policy? The experiment of figures 1 to 3 of arXiv:2505.12929 on one rollout
batch.

    python -m examples.paper.diagnose kk_7b [key=value ...] [--output FOLDER]
    python -m examples.paper.diagnose runs/NAME/config.yaml \\
        model.name_or_path=runs/NAME/checkpoints/step-N

It prints a summary and writes ``bands.csv``, ``updates.csv`` and ``tokens.csv``, which
`examples.paper.draw_diagnosis` plots.

Copies of the policy are updated on the same batch: on all its tokens, only on tokens of the lowest
or of the highest band of probability, with Advantage Reweighting, and with Lopti. Then each copy
scores the batch again.

The copies are updated as in the paper, by SGD with learning rate 1e-3, or by the run's AdamW. AdamW
keeps its second moments from the earlier steps, and with them the step size of each parameter, but
not its momentum, because past gradients would then move all copies alike. A new AdamW would not
work: the size of its first step does not depend on the size of the gradient.
"""

import argparse
import copy
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from examples.paper.language import rank_correlation
from loptune.errors import ConfigError
from loptune.progress import ProgressReport
from loptune.terminal.progress_lines import Progress
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import UpdateBatch, with_rewards
from trainer.algorithm.passes import isolation_passes, select_loss_tokens, select_tokens
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import score_batch
from trainer.algorithm.update import Updater, UpdateStatistics, learning_rate
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.parallel import ParallelConfig
from trainer.config.schema import TrainConfig, load_config
from trainer.loop import Trainer
from trainer.metrics.bands import BANDS, band_of
from trainer.metrics.step import Stopwatch
from trainer.parallel.models import logprob_model
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel
from trainer.tracking.tracker import NullTracker
from trainer.types import RunContext, TrainBatch

PUBLISHED_BANDS = ("0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-1.00")  # as in figures 1 and 3
PUBLISHED_ALPHA = 0.3  # used if AR is off in the configuration
PUBLISHED_ETA = 0.5  # used if Lopti is off in the configuration
# nats: smaller differences of log-probabilities are the rounding of float32 logits
RESOLUTION = 2e-6
MAX_ROWS = 20_000  # maximum number of rows of tokens.csv
SGD_LR = 1e-3  # as in figure 1
# filters without a meaning here, because each copy has its own eta
_FILTERS_BY_PROBABILITY = ("drop_low", "drop_high", "interval")
LOWEST = "only pi < 0.25"
HIGHEST = "only pi > 0.75"

Optimizer = Literal["sgd", "adamw"]


@dataclass(frozen=True)
class Update:
    """A kind of update, and the log-probabilities after it."""

    name: str
    logprobs: Tensor  # [N]


@dataclass(frozen=True)
class Diagnosis:
    """N completion tokens of one batch, before and after each update."""

    vocabulary: int
    after_steps: int
    logprobs: Tensor  # [N], before the update
    bands: Tensor  # [N], index in `PUBLISHED_BANDS`
    advantages: Tensor  # [N], before reweighting
    gradient_norms: Tensor  # [N], gradient of the log-probability by logits / temperature
    # [N], gradient of the log-probability by all parameters; NaN if it was not measured
    parameter_norms: Tensor
    updates: Sequence[Update]

    @property
    def rest(self) -> Tensor:
        """1 - probability before the update, [N]."""
        return -torch.expm1(self.logprobs)

    def change(self, update: Update) -> Tensor:
        """Return the probability after the update minus the probability before, [N], without the
        rounding of probabilities near 1.
        """
        return self.logprobs.exp() * torch.expm1(update.logprobs - self.logprobs)

    def correlation(self) -> float:
        """Return Pearson's correlation of the gradient norm at the logits with 1 - probability,
        over all tokens.
        """
        return _correlation(self.gradient_norms, self.rest)

    def parameter_correlation(self) -> float:
        """Return Pearson's correlation of the gradient norm over all parameters with 1 -
        probability, over the measured tokens.
        """
        measured = ~self.parameter_norms.isnan()
        return _correlation(self.parameter_norms[measured], self.rest[measured])

    def parameter_rank_correlation(self) -> float:
        """Return `parameter_correlation` by ranks (Spearman's correlation)."""
        measured = ~self.parameter_norms.isnan()
        return rank_correlation(self.parameter_norms[measured].numpy(), self.rest[measured].numpy())

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of Proposition 4.2 for the gradient norm at the logits, divided by
        ``|w| (1 - probability)``.

        The lower bound is ``sqrt(N / (N - 1))``, if the N - 1 other tokens of the vocabulary are
        equally probable. The upper bound is ``sqrt(2)``, if one of them has all of the remaining
        probability [arXiv:2505.12929, equation 3; its products over layers are 1 here]. For the
        activations below the logits, the proposition multiplies them by the smallest and largest
        singular values of the layers. Its lower bound does not hold there: the head has more rows
        than columns, so it maps some gradients at the logits to zero, and none of its singular
        values shows this.
        """
        return math.sqrt(self.vocabulary / (self.vocabulary - 1)), math.sqrt(2)

    def bound_ratios(self) -> tuple[float, float]:
        """Return the smallest and the largest gradient norm at the logits divided by 1 -
        probability, over the tokens for which float32 is precise enough.

        The norms are those of the log-probability, so the token's weight w in the loss is 1.
        """
        telling = self.rest > 1e-4
        ratios = self.gradient_norms[telling] / self.rest[telling]
        return (float(ratios.min()), float(ratios.max())) if len(ratios) else (math.nan, math.nan)

    def band_rows(self) -> list[dict[str, Any]]:
        """Return a row per update and band, with the values of figures 1 and 3."""
        return [
            {"update": update.name, "band": name, **self._row(update, self.bands == index)}
            for update in self.updates
            for index, name in enumerate(PUBLISHED_BANDS)
        ]

    def fraction_rows(self) -> list[dict[str, Any]]:
        """Return a row per update with the values of `band_rows` over all tokens, such as the
        fraction that moved in the direction of their advantage (figure 3).
        """
        everything = torch.ones_like(self.bands, dtype=torch.bool)
        return [{"update": update.name, **self._row(update, everything)} for update in self.updates]

    def _row(self, update: Update, chosen: Tensor) -> dict[str, float]:
        """Return the values of the chosen tokens; a mean over no tokens is NaN."""
        advantages = self.advantages[chosen]
        change = self.change(update)[chosen]
        moved = ((update.logprobs - self.logprobs)[chosen]).abs() > RESOLUTION
        return {
            "tokens": int(chosen.sum()),
            "probability": float(self.logprobs[chosen].exp().mean()),
            "advantage_abs": float(advantages.abs().mean()),
            "gradient_norm": float(self.gradient_norms[chosen].mean()),
            "gradient_fraction": _fraction(self.advantages.abs() * self.gradient_norms, chosen),
            "change_abs": float(change.abs().mean()),
            "change_positive": float(change[advantages > 0].mean()),
            "change_negative": float(change[advantages < 0].mean()),
            "moved": float(moved.float().mean()),
            "positive_rose": float((change[moved & (advantages > 0)] > 0).float().mean()),
            "negative_fell": float((change[moved & (advantages < 0)] < 0).float().mean()),
        }


def published_band_of(logprobs: Tensor) -> Tensor:
    """Return the index in `PUBLISHED_BANDS` of each token's probability; a band includes its lower
    edge.
    """
    return (4 * logprobs.exp()).long().clamp(max=3)


def diagnose(
    config: TrainConfig,
    folder: Path,
    after_steps: int,
    sample: int,
    optimizer: Optimizer = "sgd",
    progress: ProgressReport | None = None,
) -> Diagnosis:
    """Train ``after_steps`` steps, collect one batch, and update copies of the policy on it.

    Args:
        config: configuration of the run. AR's alpha and Lopti's eta are taken from it, or are the
            published ones if they are off. Its token filter applies to all copies, unless it drops
            tokens by eta. A single process trains, whatever ``parallel`` is.
        folder: folder of the output; this function writes nothing to it.
        after_steps: number of training steps, at least 1, because AdamW's step sizes come from
            them.
        sample: number of tokens whose gradient over all parameters is computed, equally many from
            each band of probability.
        optimizer: optimizer of the copies.
        progress: notified of every step, copy and measured token.

    Raises:
        ConfigError: no token of the batch has an advantage.
    """
    algorithm = config.algorithm
    if algorithm.token_filter in _FILTERS_BY_PROBABILITY:
        algorithm = algorithm.model_copy(update={"token_filter": "none"})
    plain = algorithm.model_copy(update={"ar_alpha": 0.0, "lopti_eta": 0.0})
    unasked = config.evaluation.model_copy(update={"sets": {}})
    # gradient norms need the log-probabilities to be recomputed
    recomputing = config.optim.model_copy(update={"old_logprobs": "recompute"})
    alone = {
        "algorithm": plain,
        "parallel": ParallelConfig(),
        "evaluation": unasked,
        "optim": recomputing,
    }
    config = config.model_copy(update=alone)
    context = RunContext(folder, folder.parent, "diagnose", folder.name)
    trainer = Trainer(config, context, NullTracker(), progress)
    try:
        for _ in range(after_steps):
            metrics = trainer.training_step()
            trainer.progress.step(trainer.step, metrics)
        trainer.progress.phase("the batch of the diagnosis")
        found = trainer.source.next_groups(trainer.step, Stopwatch())
        groups = found.scores.result().groups
        # no update follows this batch
        scorer = replace(trainer.scorer, models=replace(trainer.models, cached_forward=None))
        batch, plan = scorer.score(groups)
        batch = with_rewards(batch, groups, config.reward.functions)
        batch = select_loss_tokens(estimate_advantages(batch, plain, Parallel().sum), plain)
        assert batch.gradient_norms is not None
        if not batch.advantages.any():
            raise ConfigError(
                "no token of the batch has an advantage: within every group all rewards are equal",
                "rollout",
                "take more prompts, e.g. rollout.prompts_per_step=64, or harder problems",
            )
        place = batch.completion_mask.bool()
        logprobs = batch.old_logprobs[place]
        return Diagnosis(
            vocabulary=trainer.models.causal_lm.get_output_embeddings().weight.shape[0],
            after_steps=after_steps,
            logprobs=logprobs.cpu(),
            bands=published_band_of(logprobs).cpu(),
            advantages=batch.advantages[place].cpu(),
            gradient_norms=batch.gradient_norms[place].cpu(),
            parameter_norms=_parameter_norms(trainer, batch, sample),
            updates=_updates(trainer, batch, plan, algorithm, optimizer),
        )
    finally:
        trainer.close()


def _updates(
    trainer: Trainer,
    batch: TrainBatch,
    plan: Sequence[UpdateBatch],
    algorithm: AlgorithmConfig,
    optimizer: Optimizer,
) -> list[Update]:
    place = batch.completion_mask.bool()
    bands = torch.full_like(batch.completion_mask, -1.0)
    bands[place] = published_band_of(batch.old_logprobs[place]).float()
    alpha = algorithm.ar_alpha or PUBLISHED_ALPHA
    eta = algorithm.lopti_eta or PUBLISHED_ETA
    plain = trainer.config.algorithm
    isolated = algorithm.model_copy(update={"ar_alpha": 0.0, "lopti_eta": eta})
    tokens = select_tokens(batch, plain)
    reweighted = reweight_advantages(batch, plain.model_copy(update={"ar_alpha": alpha}))
    generator = torch.Generator().manual_seed(trainer.config.seed)
    first, second = ("low", "high") if isolated.lopti_order == "low_first" else ("high", "low")
    named = [
        (["all tokens"], batch, [tokens]),
        ([LOWEST], batch, [(bands == 0) * tokens]),
        ([HIGHEST], batch, [(bands == 3) * tokens]),
        ([f"AR {alpha:g}"], reweighted, [tokens]),
        (
            [f"Lopti {eta:g}, {first} pass", f"Lopti {eta:g}, then {second}"],
            batch,
            isolation_passes(batch, isolated, generator),
        ),
    ]
    updates = []
    for names, used, passes in named:
        trainer.progress.phase(f"updating a copy: {names[-1]}")
        updates += [
            Update(name, logprobs[place].cpu())
            for name, logprobs in zip(
                names, after_passes(trainer, used, plan, passes, optimizer), strict=True
            )
        ]
    return updates


def after_passes(
    trainer: Trainer,
    batch: TrainBatch,
    plan: Sequence[UpdateBatch],
    passes: Sequence[Tensor],
    optimizer: Optimizer,
) -> list[Tensor]:
    """Return the log-probabilities [B, T] after each pass of an update of a copy of the policy."""
    config = trainer.config
    policy = logprob_model(
        copy.deepcopy(trainer.models.causal_lm), config, trainer.models.stored_dtype
    )
    stepping = (
        _copied_adamw(trainer, policy)
        if optimizer == "adamw"
        else torch.optim.SGD(_trained(policy), SGD_LR)
    )
    updater = Updater(
        policy,
        stepping,
        config.algorithm,
        config.optim.max_grad_norm,
        Parallel(),
        config.rollout.max_new_tokens,
    )
    if optimizer == "adamw":
        updater.set_learning_rate(learning_rate(config.optim, trainer.step, trainer.total_steps))
    after = []
    for token_mask in passes:
        updater.run_pass(batch, token_mask, plan, UpdateStatistics.of(batch), trainer.step)
        after.append(score_batch(policy, batch, plan, with_entropy=False).logprobs)
    return after


def _copied_adamw(trainer: Trainer, policy: LogprobModel) -> torch.optim.Optimizer:
    adamw = torch.optim.AdamW(_trained(policy), lr=trainer.config.optim.lr)
    adamw.load_state_dict(copy.deepcopy(trainer.models.optimizer.state_dict()))
    for group in adamw.param_groups:
        group["betas"] = (0.0, group["betas"][1])
    return adamw


def _trained(policy: LogprobModel) -> list[nn.Parameter]:
    return [parameter for parameter in policy.parameters() if parameter.requires_grad]


def _parameter_norms(trainer: Trainer, batch: TrainBatch, sample: int) -> Tensor:
    """Return the norm of the gradient of single log-probabilities over all parameters, [N]; NaN for
    tokens that were not measured.
    """
    rows, columns = batch.completion_mask.nonzero(as_tuple=True)
    bands = band_of(batch.old_logprobs[rows, columns]).cpu()
    generator = torch.Generator().manual_seed(trainer.config.seed)
    order = torch.randperm(len(rows), generator=generator)
    chosen = torch.cat(
        [order[bands[order] == band][: sample // len(BANDS)] for band in range(len(BANDS))]
    )
    norms = torch.full((len(rows),), math.nan)
    policy = logprob_model(trainer.models.causal_lm, trainer.config, trainer.models.stored_dtype)
    parameters = _trained(policy)
    what = f"gradients of {len(chosen)} tokens by all parameters"
    trainer.progress.note(what)
    trainer.progress.phase(what, len(chosen), announce=False)
    for index in chosen.tolist():
        row = int(rows[index])
        column = int(columns[index])
        end = int(batch.prompt_lengths[row]) + column + 1
        last = torch.zeros_like(batch.completion_mask[row : row + 1, : column + 1])
        last[0, column] = 1
        scores = policy(
            batch.input_ids[row : row + 1, :end], batch.prompt_lengths[row : row + 1], last
        )
        gradients = torch.autograd.grad(scores.logprobs.sum(), parameters, allow_unused=True)
        norms[index] = torch.stack([g.norm() for g in gradients if g is not None]).norm().cpu()
        trainer.progress.completed(1)
    return norms


def _fraction(values: Tensor, chosen: Tensor) -> float:
    total = float(values.sum())
    return float(values[chosen].sum()) / total if total else math.nan


def _correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first, second]).double())[0, 1])


def write_tables(found: Diagnosis, folder: Path) -> None:
    """Write ``bands.csv``, ``updates.csv`` and ``tokens.csv``."""
    pd.DataFrame(found.band_rows()).to_csv(folder / "bands.csv", index=False)
    pd.DataFrame(found.fraction_rows()).to_csv(folder / "updates.csv", index=False)
    order = found.logprobs.argsort(stable=True)[:: math.ceil(len(found.logprobs) / MAX_ROWS)]
    columns = {
        "probability": found.logprobs.exp(),
        "band": found.bands,
        "advantage": found.advantages,
        "gradient_norm": found.gradient_norms,
        "parameter_gradient_norm": found.parameter_norms,
        **{f"change: {update.name}": found.change(update) for update in found.updates},
    }
    table = pd.DataFrame({name: values[order].numpy() for name, values in columns.items()})
    table["band"] = table["band"].map(dict(enumerate(PUBLISHED_BANDS)))
    table.to_csv(folder / "tokens.csv", index=False)


def summary(found: Diagnosis) -> list[str]:
    """Return the printed values, one line each."""
    low, high = found.bound_ratios()
    lower, upper = found.bounds()
    rows = found.band_rows()[: len(PUBLISHED_BANDS)]
    fractions = [row["tokens"] / len(found.rest) for row in rows]
    lines = [
        f"tokens:      {len(found.rest)} in one batch, after {found.after_steps} steps",
        f"correlation: {found.correlation():.4f} of gradient norm (logits) with 1 - probability",
        f"             {found.parameter_correlation():.4f} of gradient norm (all parameters, "
        f"{int((~found.parameter_norms.isnan()).sum())} tokens); between ranks "
        f"{found.parameter_rank_correlation():.4f}",
        f"bounds:      norm / (1 - probability) is {low:.4f} to {high:.4f}; proven {lower:.4f} to "
        f"{upper:.4f}",
        f"gradient:    {rows[0]['gradient_fraction']:.1%} of |A| x norm is of the "
        f"{fractions[0]:.1%} of the tokens below 0.25, "
        f"{rows[-1]['gradient_fraction']:.1%} of the {fractions[-1]:.1%} above 0.75",
    ]
    width = max(len(update.name) for update in found.updates)
    for row in found.fraction_rows():
        lines.append(
            f"{row['update']:<{width}}  mean change {row['change_abs']:.2e}, moved "
            f"{row['moved']:.1%}; of these, A > 0 that rose {row['positive_rose']:.1%}, A < 0 that "
            f"fell {row['negative_fell']:.1%}"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Diagnose one configuration and write its tables."""
    parser = argparse.ArgumentParser(prog="python -m examples.paper.diagnose")
    parser.add_argument("spec", help="preset or YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--output", type=Path, default=Path("diagnose"), help="folder (default: diagnose)"
    )
    parser.add_argument(
        "--after-steps", type=int, default=5, help="steps to train first (default: 5)"
    )
    parser.add_argument(
        "--sample", type=int, default=200, help="tokens with full gradients (default: 200)"
    )
    optimizers = (
        "of the copies: sgd with learning rate 1e-3, as in the paper, or the run's (default: sgd)"
    )
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd", help=optimizers)
    given = parser.parse_args(arguments)
    config = load_config(given.spec, given.overrides)
    given.output.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    progress.begin(given.after_steps, 0)
    try:
        found = diagnose(
            config, given.output, given.after_steps, given.sample, given.optimizer, progress
        )
    finally:
        progress.close()
    write_tables(found, given.output)
    print("\n".join([*summary(found), f"tables:      {given.output}/*.csv"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
