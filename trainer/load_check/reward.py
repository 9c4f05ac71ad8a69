"""Score reference answers and an empty completion, and record the text that the reward receives."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from loptune.errors import warning_text
from rewards.sandbox import RewardPool, ScoredText
from trainer.types import Problem

_logger = logging.getLogger(__name__)

_PROBLEMS = 3


@dataclass(frozen=True)
class ScoredCompletion:
    """A completion of a problem, the text that the reward received, and its score."""

    completion: str
    text: str
    scored: ScoredText


@dataclass(frozen=True)
class RewardProbe:
    """The scores of a problem's reference answer and of an empty completion."""

    reference: ScoredCompletion
    empty: ScoredCompletion


def probe_reward(rewards: RewardPool, problems: Sequence[Problem]) -> list[RewardProbe]:
    """Score the reference answers of the first problems, and an empty completion of each."""
    chosen = problems[:_PROBLEMS]
    completions = [completion for problem in chosen for completion in (str(problem.answer), "")]
    of_each = [problem for problem in chosen for _ in range(2)]
    texts = [
        problem.prefill + completion
        for problem, completion in zip(of_each, completions, strict=True)
    ]
    scores = rewards.score(
        texts, [problem.answer for problem in of_each], [problem.columns for problem in of_each]
    )
    scored = [ScoredCompletion(*each) for each in zip(completions, texts, scores, strict=True)]
    return [
        RewardProbe(reference, empty)
        for reference, empty in zip(scored[::2], scored[1::2], strict=True)
    ]


def warn_of_empty(probes: Sequence[RewardProbe]) -> None:
    """Warn if an empty completion scores higher than the reference answer on every problem."""
    higher = [
        probe
        for probe in probes
        if probe.empty.scored.score.reward > probe.reference.scored.score.reward
    ]
    if probes and len(higher) == len(probes):
        first = higher[0]
        text = warning_text(
            f"an empty completion scores {first.empty.scored.score.reward:g}, and the reference "
            f"answer {first.reference.completion[:60]!r} only "
            f"{first.reference.scored.score.reward:g}",
            "reward.functions",
            "inspect the input of the reward: trainer run SPEC --dry-run",
        )
        _logger.warning("%s", text)
