"""Run a trainer, and pass the metrics that it writes on to the sweep while it runs.

    python relay.py FILE METRIC -- COMMAND ...

FILE is the trainer's file of JSON lines, a .jsonl: {"step": 5, "reward": 0.4}, or verl's
{"step": 5, "data": {"reward": 0.4}}. It may also be the folder of the trainer's TensorBoard events.
Lines without METRIC, such as training steps without an evaluation, are left out.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def json_lines(path):
    """Yield step and metrics of each complete line; nothing until the file exists."""
    if not path.is_file():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            row = json.loads(line)
            yield row["step"], row.get("data", row)


def event_files(folder):
    """Yield step and metrics of the TensorBoard events below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for place in sorted({file.parent for file in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            for point in events.Scalars(tag):
                yield point.step, {tag: point.value}


def numbers_of(metrics):
    """Return the metrics that are numbers, without the ones that the sweep records itself."""
    numbers = {}
    for name, value in metrics.items():
        if isinstance(value, int | float) and name not in ("step", "time"):
            numbers[name] = value
    return numbers


source = Path(sys.argv[1])
metric = sys.argv[2]
command = sys.argv[sys.argv.index("--") + 1 :]
read = json_lines if source.suffix == ".jsonl" else event_files
sent = set()  # steps that were passed on
child = subprocess.Popen(command)
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
with open(
    Path(os.environ["LOPTUNE_OUT"]) / "metrics.jsonl", "a", encoding="utf-8", buffering=1
) as record:
    ended = False
    while not ended:
        ended = child.poll() is not None  # polled before reading, so that the last lines are read
        for step, metrics in read(source):
            if metric in metrics and step not in sent:
                record.write(json.dumps({"step": step, **numbers_of(metrics)}) + "\n")
                sent.add(step)
        if not ended:
            time.sleep(1)
sys.exit(child.returncode)
