"""Folders of sweeps that have ended, as a driver leaves them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.search.event_log import EventLog
from sweep.search.trial_report import Failure
from tests.sweep.harness import write_space

SCORES: dict[int, dict[int, float | str]] = {
    0: {0: 0.5, 1: 0.6},
    1: {0: 0.9, 1: "diverged at step 3: policy/loss is nan"},
    2: {0: 0.7, 1: 0.6},
    3: {0: 0.8},
}


def write_sweep(
    runs: Path,
    name: str = "demo",
    scores: Mapping[int, Mapping[int, float | str | Failure]] = SCORES,
    parts: int = 10,
    seconds: Mapping[int, Mapping[int, float]] | None = None,
    pruned: Collection[int] = (),
    **space: Any,
) -> SweepRecord:
    """A sweep's folder as a driver leaves it: configuration -> seed -> score or reason of
    failure. A configuration's alpha is its number by ``parts``; its seeds are those of the scores.
    ``seconds``: the same for a second objective. ``pruned``: the configurations that were stopped
    early.
    """
    folder = sweep_folder(runs, name)
    folder.root.mkdir(parents=True)
    seeds = sorted({seed for row in scores.values() for seed in row})
    write_space(folder.space, **{"name": name, "seeds": seeds or [0], **space})
    events: list[dict[str, Any]] = []
    for number, seeds in scores.items():
        resolved = {"algorithm.ar_alpha": number / parts}
        proposal = {"fingerprint": str(number), "time": 1.0}
        proposal |= {"parameters": resolved, "resolved": resolved}
        events.append({"event": "configuration", "configuration": number, **proposal})
        for seed, score in seeds.items():
            failed = isinstance(score, str | Failure)
            ending: dict[str, Any] = {"state": "PRUNED" if number in pruned else "COMPLETE"}
            if failed:
                failure = Failure(score) if isinstance(score, str) else score
                ending = {"state": "FAIL", "score": None, **failure._asdict()}
            result = {"score": score, "reason": "", "step": 4, "time": 2.0, **ending}
            if seconds is not None:
                result["second"] = seconds[number][seed]
            trial = {"trial_id": f"{number}{seed}", "configuration": number, "seed": seed}
            events.append({"event": "result", **trial, **result})
            run_dir = folder.trial(f"c{number:03d}-s{seed}")
            run_dir.mkdir(parents=True)
            (run_dir / "metrics.jsonl").write_text(
                f'{{"step": 3, "time": 1.0, "time/step": 2.0, "data/of_trial": {number}.{seed}}}\n'
                '{"step": 4, "time": 3'
            )
    EventLog(folder.event_log).append(*events)
    return open_sweep(runs, name)
