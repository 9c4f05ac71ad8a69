"""Searchers driven without Ray: trials that end at once with a score computed from their
parameters.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweep.search.event_log import read_event_log
from sweep.search.history import replay
from sweep.search.searcher import ConfigurationSearcher
from sweep.search.trial_report import TrialReport
from sweep.space.spec import SweepSpec
from tests.sweep.spaces import make_spec

ALPHA = "algorithm.ar_alpha"
ETA = "algorithm.lopti_eta"
NUMERIC = {
    ALPHA: {"uniform": [0.0, 0.5]},
    "optim.lr": {"loguniform": [1e-6, 1e-3]},
    "rollout.group_size": {"int": [4, 16, 4]},
    "algorithm.advantage": {"choice": ["grpo", "reinforce_plus_plus"]},
    "lopti": {"choice": [False, True]},
    ETA: {"uniform": [0.2, 0.9], "when": {"lopti": True}, "else": 0.0},
}
GRID = {
    ALPHA: {"choice": [0.0, 0.1, 0.2, 0.3, 0.4]},
    "lopti": {"choice": [False, True]},
    ETA: {"choice": [0.3, 0.5], "when": {"lopti": True}, "else": 0.0},
}


def ended(score: float, **more: Any) -> dict[str, Any]:
    return TrialReport(60, score, finished=True).to_result(**more)


def score_of(suggestion: dict[str, Any]) -> float:
    """Best at alpha 0.3; a little worse with a larger seed."""
    return 1 - abs(float(suggestion["parameters"][ALPHA]) - 0.3) - 0.01 * int(suggestion["seed"])


def searcher_in(
    folder: Path,
    spec: SweepSpec | None = None,
    before_trial: Callable[[str, Sequence[str]], int] = lambda trial, running: 0,
) -> ConfigurationSearcher:
    event_log = folder / "events.jsonl"
    earlier = replay(read_event_log(event_log)) if event_log.exists() else []
    return ConfigurationSearcher(
        spec or make_spec(folder), event_log, before_trial, earlier, lambda: 1000
    )


def drain(
    searcher: ConfigurationSearcher,
    parallel: int = 2,
    result: Callable[[dict[str, Any]], dict[str, Any]] = lambda suggestion: ended(
        score_of(suggestion)
    ),
) -> list[dict[str, Any]]:
    """Run a sweep of instant trials, `parallel` at a time, the oldest ending first."""
    running: list[tuple[str, dict[str, Any]]] = []
    seen: list[dict[str, Any]] = []
    for number in itertools.count():
        suggestion = searcher.suggest(f"{id(searcher)}-{number}")
        if suggestion == searcher.FINISHED and not running:
            return seen
        if suggestion != searcher.FINISHED:
            running.append((f"{id(searcher)}-{number}", suggestion))
            seen.append(suggestion)
        if suggestion == searcher.FINISHED or len(running) == parallel:
            trial_id, oldest = running.pop(0)
            searcher.on_trial_complete(trial_id, result(oldest))
    raise AssertionError
