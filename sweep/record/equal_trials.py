"""Trials that measured exactly the same: seed or settings may not reach what they run."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

from sweep.record.sweep_record import SweepRecord
from sweep.search.history import TrialKey
from trainer.errors import shortened
from trainer.files import read_records
from trainer.run_folder import RunFolder

# of metrics that differ in any case; TRL logs eval/runtime
_TIMES = re.compile(r"time|per_second$")


def equal_trials(sweep: SweepRecord) -> list[str]:
    """Return a sentence for each group of trials that measured exactly the same."""
    ended = [
        (TrialKey(configuration.number, seed).name, result.score)
        for configuration in sweep.configurations
        for seed, result in sorted(configuration.results.items())
        if result.state == "COMPLETE"
    ]
    with_score = Counter(score for _, score in ended)
    groups = defaultdict(list)
    for trial, score in ended:
        # only of equal scores, what was measured need be read
        if with_score[score] > 1:
            groups[score, _measured(sweep.folder.trial(trial))].append(trial)
    return [
        f"{shortened(', '.join(group), 80)} measured exactly the same: do seed and settings reach "
        "what they run?"
        for group in groups.values()
        if len(group) > 1
    ]


def _measured(run_dir: Path) -> str:
    """Return a run's metrics without its times, as text that only the same measurements have; else
    its folder.
    """
    records = read_records(RunFolder(run_dir).metrics)
    lines = [
        {name: value for name, value in line.items() if not _TIMES.search(name)} for line in records
    ]
    return json.dumps(lines, sort_keys=True) if lines else str(run_dir)
