"""Folders of sweeps that have ended, as a driver leaves them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweep.record.folder import sweep_folder
from tests.sweep.harness import write_space

SCORES: dict[int, dict[int, float | str]] = {
    0: {0: 0.5, 1: 0.6},
    1: {0: 0.9, 1: "diverged at step 3: policy/loss is nan"},
    2: {0: 0.7, 1: 0.6},
    3: {0: 0.8},
}


def write_sweep(runs: Path, name: str, scores: Mapping[int, Mapping[int, float | str]], **space: Any) -> None:
    """A sweep's folder as a driver leaves it: configuration -> seed -> score or reason of failure."""
    folder = sweep_folder(runs, name)
    folder.root.mkdir(parents=True)
    write_space(folder.space, name=name, **space)
    events: list[dict[str, Any]] = []
    for number, seeds in scores.items():
        resolved = {"algorithm.ar_alpha": number / 10}
        events.append(
            {
                "event": "configuration",
                "configuration": number,
                "origin": "baseline",
                "parameters": resolved,
                "resolved": resolved,
                "fingerprint": str(number),
                "attributes": {},
                "time": 1.0,
            }
        )
        for seed, score in seeds.items():
            failed = isinstance(score, str)
            events.append(
                {
                    "event": "result",
                    "trial_id": f"{number}{seed}",
                    "configuration": number,
                    "seed": seed,
                    "state": "FAIL" if failed else "COMPLETE",
                    "score": None if failed else score,
                    "step": 4,
                    "reason": score if failed else "",
                    "time": 2.0,
                }
            )
            run_dir = folder.trial(f"c{number:03d}-s{seed}")
            run_dir.mkdir(parents=True)
            (run_dir / "metrics.jsonl").write_text(
                '{"step": 3, "time": 1.0, "time/step": 2.0}\n{"step": 4, "time": 3'
            )
    folder.ledger.write_text("".join(json.dumps(event) + "\n" for event in events))
