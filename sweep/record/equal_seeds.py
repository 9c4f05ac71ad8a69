"""Seeds of one configuration that measured exactly the same: the seed may not reach what
they run.
"""

import json
import re
from collections import Counter
from pathlib import Path

from sweep.record.sweep_record import SweepRecord
from sweep.search.history import TrialKey
from trainer.files import read_records
from trainer.run_folder import RunFolder

# of metrics that differ in any case; TRL logs eval/runtime
_TIMES = re.compile(r"time|per_second$")


def equal_seeds(sweep: SweepRecord) -> list[str]:
    """Return a sentence for each trial that measured what an earlier seed of its
    configuration did.
    """
    messages = []
    for configuration in sweep.configurations:
        scores = Counter(result.score for result in configuration.results.values())
        trials: dict[str, str] = {}  # what was measured -> the first trial
        for seed, result in sorted(configuration.results.items()):
            # only of equal scores, what was measured need be read
            if result.state == "COMPLETE" and scores[result.score] > 1:
                trial = TrialKey(configuration.number, seed).name
                measured = f"{result.score} {_measured(sweep.folder.trial(trial))}"
                first = trials.setdefault(measured, trial)
                if first != trial:
                    messages.append(
                        f"{trial} measured exactly what {first} did: does the seed reach what they "
                        "run?"
                    )
    return messages


def _measured(run_dir: Path) -> str:
    """Return a run's metrics without its times, as text that only the same measurements have; else
    its folder.
    """
    records = read_records(RunFolder(run_dir).metrics)
    lines = [
        {name: value for name, value in line.items() if not _TIMES.search(name)} for line in records
    ]
    return json.dumps(lines, sort_keys=True) if lines else str(run_dir)
