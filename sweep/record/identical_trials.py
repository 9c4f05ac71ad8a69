"""Detect trials with identical metrics: the seed or the settings may not reach the program."""

import json
import re
from collections import defaultdict

from loptune.errors import shortened
from loptune.files import Record, read_records
from sweep.record.sweep_record import SweepRecord, last_record
from trainer.run_folder import RunFolder

# timing metrics, which always differ (TRL logs eval/runtime), and the number of the attempt
_TIMES = re.compile(r"time|per_second$|^attempt$")
_MAX_CHARS = 160  # length limit of the list of trials in a warning


def identical_trials(sweep: SweepRecord) -> list[str]:
    """Return a warning that lists the groups of trials with identical metrics; empty if there are
    none.
    """
    folder = sweep.folder
    by_end = defaultdict(list)
    for configuration in sweep.configurations:
        for _, trial in sorted(configuration.results.items()):
            if trial.state == "COMPLETE":
                last = last_record(folder.trial(trial.name))
                by_end[_text([last])].append(trial.name)
    groups = defaultdict(list)
    for names in by_end.values():
        if len(names) == 1:
            continue  # full metrics are read only for trials with equal last records
        for name in names:
            records = read_records(RunFolder(folder.trial(name)).metrics)
            if records:
                groups[_text(records)].append(name)
    alike = [", ".join(group) for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    return [
        f"{shortened('; '.join(alike), _MAX_CHARS)} have identical metrics: check that seed and "
        "settings reach the program."
    ]


def _text(records: list[Record]) -> str:
    """Serialize records without timing metrics."""
    lines = []
    for record in records:
        lines.append({name: value for name, value in record.items() if not _TIMES.search(name)})
    return json.dumps(lines, sort_keys=True)
