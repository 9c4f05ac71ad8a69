"""Read damaged files of every format: no traceback, no hang, no memory without bound.

    python -m tests.dashboards.sources.fuzz --files 2000

changes small valid files at random and prints each that is neither read nor refused by an error for
its user, within ten seconds of processor time (two minutes on the clock) and one GiB. The last line
of a format has the numbers of files, of those that were read and refused, and of faults; the
processor seconds of the slowest file; and the memory that reading them added.
"""

import argparse
import gzip
import io
import json
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dashboards.sources.places import read_place
from dashboards.sources.stored import pack, unpack
from loptune.errors import UserError
from loptune.yaml_document import read_yaml
from sweep.record.results import read_results
from tests.paths import ROOT
from tests.sweep.ended_sweeps import write_sweep
from trainer.config.data import DatasetConfig
from trainer.problems.rows import read_rows

SECONDS = 10  # of processor time: on a busy machine, a clock would count the others' time
WAITING_S = 120  # for a reader that waits and computes nothing
MEMORY = 1 << 30
ROWS = [
    {"loss": loss, "seed": seed, "step": step, "acc": 0.5 + seed / 10 + step / 100}
    for loss in ("grpo", "dapo")
    for seed in (0, 1)
    for step in (1, 2)
]
TOKENS = [
    *(b"", b"\0", b"\xff\xfe", b"\n", b'"', b"'", b",", b"\t", b"{", b"}", b"[", b"]", b":", b"- "),
    *(b"NaN", b"null", b"true", b"-1", b"1e999", b"9" * 5_000, b"0.5.5", b"2024-13-45", b"%"),
    *(
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!python/object:os.system ",
        b"? ",
        b"|\n",
        b"\\u0000",
        b"\xed\xa0",
    ),
    *(b"[" * 3_000, b'{"a":' * 2_000, b"a: &x [*x]\n", b"\r", b"#", b"\x1b[2J", b"x" * 70_000),
]


def table():
    return pd.DataFrame(ROWS)


def parquet():
    buffer = io.BytesIO()
    table().to_parquet(buffer)
    return buffer.getvalue()


def events(shift=0.0):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for row in ROWS[:4]:
        value = Summary.Value(tag="acc", simple_value=row["acc"] + shift)
        event = Event(step=row["step"], wall_time=1.0, summary=Summary(value=[value]))
        writer.write(event.SerializeToString())
    return buffer.getvalue()


def study(journal):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study"
        storage = f"sqlite:///{path}"
        if journal:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        made = optuna.create_study(storage=storage)
        made.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=2)
        return path.read_bytes()


def trackio():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "project.db"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, "
                "step INTEGER, metrics TEXT)"
            )
            database.execute(
                "CREATE TABLE configs (id INTEGER PRIMARY KEY, run_name TEXT, config TEXT)"
            )
            for row in ROWS:
                metrics = json.dumps({"acc": row["acc"]})
                name = f"{row['loss']}-s{row['seed']}"
                database.execute(
                    "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('', ?, ?, ?)",
                    (name, row["step"], metrics),
                )
            database.execute(
                "INSERT INTO configs (run_name, config) VALUES ('grpo-s0', '{\"lr\": 1}')"
            )
        return path.read_bytes()


def lines(rows):
    return "\n".join(map(json.dumps, rows)).encode() + b"\n"


def formats():
    """Format -> its files, of which the first is damaged, and the place that is read."""
    text = table().to_csv(index=False)
    metrics = b"step,acc\n1,0.5\n2,0.6\n"
    settings = "# made by hand\noptim: {lr: 1e-6, betas: [0.9, 0.99]}\nseed: &s 3\nother: *s\n"
    meta = b"experiment_id: '1'\nlifecycle_stage: active\nname: exp\n"
    run = b"run_id: a\nrun_name: r\nstatus: 3\nstart_time: 1\nlifecycle_stage: active\n"
    mlruns = {
        "mlruns/1/meta.yaml": meta,
        "mlruns/1/a/meta.yaml": run,
        "mlruns/1/a/params/seed": b"0",
        "mlruns/1/a/metrics/acc": b"1 0.5 0\n2 0.6 1\n",
    }
    configured = table().assign(config=[str({"lr": 0.1, "tags": [1]})] * len(ROWS), Name="a", ID=1)
    return {
        "CSV": ({"a.csv": text.encode()}, "a.csv"),
        "CSV with semicolons": ({"a.csv": text.replace(",", ";").encode()}, "a.csv"),
        "CSV, gzipped": ({"a.csv.gz": gzip.compress(text.encode(), mtime=0)}, "a.csv.gz"),
        "text in columns": ({"a.txt": text.replace(",", "  ").encode()}, "a.txt"),
        "CSV in UTF-16": ({"a.csv": text.encode("utf-16")}, "a.csv"),
        "W&B export": ({"a.csv": configured.to_csv(index=False).encode()}, "a.csv"),
        "W&B chart": ({"a.csv": b'"Step","a - acc","b - acc"\n1,0.5,\n2,,0.7\n'}, "a.csv"),
        "W&B folder": (
            {
                "wandb/run-1/files/wandb-summary.json": b'{"acc": 0.5, "_step": 3}',
                "wandb/run-1/files/config.yaml": b"lr:\n  desc: null\n  value: 0.1\n",
            },
            "wandb",
        ),
        "JSON records": ({"a.json": json.dumps(ROWS).encode()}, "a.json"),
        "JSON split": ({"a.json": table().to_json(orient="split").encode()}, "a.json"),
        "JSON columns": ({"a.json": table().to_json().encode()}, "a.json"),
        "trainer state": (
            {"trainer_state.json": json.dumps({"log_history": ROWS}).encode()},
            "trainer_state.json",
        ),
        "lm-eval": (
            {"a.json": b'{"results": {"gsm8k": {"acc,none": 0.5}}, "config": {}, "configs": {}}'},
            "a.json",
        ),
        "JSON Lines": ({"a.jsonl": lines(ROWS)}, "a.jsonl"),
        "verl log": (
            {"a.jsonl": lines({"step": row["step"], "data": row} for row in ROWS)},
            "a.jsonl",
        ),
        "Parquet": ({"a.parquet": parquet()}, "a.parquet"),
        "TensorBoard": ({"events.out.tfevents.1": events()}, "events.out.tfevents.1"),
        "Optuna database": ({"a.db": study(False)}, "a.db"),
        "Optuna journal": ({"a.log": study(True)}, "a.log"),
        "Trackio": ({"a.db": trackio()}, "a.db"),
        "settings, YAML": (
            {"run/config.yaml": settings.encode(), "run/metrics.csv": metrics},
            "run/metrics.csv",
        ),
        "settings, JSON": (
            {"run/config.json": b'{"optim": {"lr": 0.1}}', "run/metrics.csv": metrics},
            "run/metrics.csv",
        ),
        "settings, Hydra": (
            {
                "run/.hydra/overrides.yaml": b"- +optim.lr=0.1\n- seed=1\n",
                "run/metrics.csv": metrics,
            },
            "run/metrics.csv",
        ),
        "mlruns, description": (mlruns, "mlruns"),
        "mlruns, run": ({name: mlruns[name] for name in sorted(mlruns, key=_run_first)}, "mlruns"),
        "mlruns, metric": (
            {name: mlruns[name] for name in sorted(mlruns, key=lambda name: "metrics" not in name)},
            "mlruns",
        ),
    }  # fmt: skip


def _run_first(name):
    return name != "mlruns/1/a/meta.yaml"


def damaged(content, chance):
    """The content with one to four changes."""
    for _ in range(chance.randint(1, 4)):
        first = chance.randrange(len(content) + 1)
        last = min(len(content), first + chance.choice((0, 1, 1, 2, 8, 64)))
        kind = chance.randrange(6)
        if kind == 0:  # a bit
            changed = bytes(byte ^ 1 << chance.randrange(8) for byte in content[first : first + 1])
            content = content[:first] + changed + content[first + 1 :]
        elif kind == 1:
            content = content[:first] + content[last:]
        elif kind == 2:
            content = (
                content[:last] + content[first:last] * chance.choice((1, 3, 500)) + content[last:]
            )
        elif kind == 3:
            content = content[:first]
        elif kind == 4:
            content = content[:first] + chance.randbytes(last - first) + content[last:]
        else:
            content = content[:first] + chance.choice(TOKENS) + content[last:]
    return content


@dataclass(frozen=True)
class Example:
    """A small valid input: its files, of which the first is damaged, and the call that reads it."""

    files: dict[str, bytes]
    place: str
    read: Callable[[Path], object]


def examples():
    """Format -> its example: the tables, and what else is read that others wrote."""
    tables = {
        name: Example(files, place, lambda path: read_place(str(path), "acc", ""))
        for name, (files, place) in formats().items()
    }
    problems = [{"prompt": f"1 + {number}?", "answer": str(number + 1)} for number in range(5)]
    csv = pd.DataFrame(problems).to_csv(index=False).encode()
    buffer = io.BytesIO()
    pd.DataFrame(problems).to_parquet(buffer)
    space = (ROOT / "search_spaces/quickstart.yaml").read_bytes()
    return tables | {
        "problems, CSV": Example({"a.csv": csv}, "a.csv", read_problems),
        "problems, JSON": Example(
            {"a.json": json.dumps(problems).encode()}, "a.json", read_problems
        ),
        "problems, JSON Lines": Example({"a.jsonl": lines(problems)}, "a.jsonl", read_problems),
        "problems, Parquet": Example({"a.parquet": buffer.getvalue()}, "a.parquet", read_problems),
        "search space": Example({"a.yaml": space}, "a.yaml", read_yaml),
        "results in MLflow": Example({"a.json.gz": stored()}, "a.json.gz", read_stored),
        "results in MLflow, unpacked": Example(
            {"a.json": gzip.decompress(stored())}, "a.json", read_unpacked
        ),
    }


def stored():
    with tempfile.TemporaryDirectory() as folder:
        return pack(read_results(write_sweep(Path(folder))))


def read_problems(path):
    return read_rows(DatasetConfig(source=str(path)))


def read_stored(path):
    return unpack(path.read_bytes(), str(path))


def read_unpacked(path):
    return unpack(gzip.compress(path.read_bytes(), 1), str(path))


def fault_of(example, path):
    """Read a damaged file; return whether it was read, and the traceback of a failure that is no
    error for the user.
    """
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING_S)
    try:
        example.read(path)
        return True, None
    except UserError:
        return False, None
    except BaseException:
        return False, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


class Hang(BaseException):
    """More than `SECONDS` of processor time, or `WAITING_S`."""


def hang(*_):
    raise Hang


def status_bytes(field):
    """Return a size of this process, such as VmRSS or the peak VmHWM."""
    line = re.search(
        rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.M
    )
    return int(line[1]) << 10


def fuzz(files, seed, only=""):
    """Return the number of faults, and print each and a line for each format."""
    signal.signal(signal.SIGPROF, hang)
    signal.signal(signal.SIGALRM, hang)
    chosen = {name: example for name, example in examples().items() if only in name}
    for example in chosen.values():  # imports everything before memory is limited
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), example.files)
            example.read(Path(folder) / example.place)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return sum(fuzz_format(name, example, files, seed) for name, example in chosen.items())


def fuzz_format(name, example, files, seed):
    """Return the number of faults of one format."""
    faults = 0
    read = 0
    slowest = 0.0
    first, original = next(iter(example.files.items()))
    Path("/proc/self/clear_refs").write_text(
        "5", encoding="utf-8"
    )  # the peak is the current size now
    before = status_bytes("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            chance = random.Random(f"{seed} {name} {number}")
            root = Path(folder) / str(number)
            write(root, example.files | {first: damaged(original, chance)})
            started = time.process_time()
            was_read, fault = fault_of(example, root / example.place)
            slowest = max(slowest, time.process_time() - started)
            read += was_read
            if fault is not None:
                faults += 1
                kept = Path(tempfile.mkdtemp(prefix="loptune-fuzz-"))
                shutil.copytree(root, kept, dirs_exist_ok=True)
                print(f"{name}, file {number}, kept in {kept}:\n{fault}")
            shutil.rmtree(root)
    added = (status_bytes("VmHWM") - before) >> 20
    print(
        f"{name}: {files} files, {read} read, {files - read - faults} refused, {faults} faults, "
        f"slowest {slowest:.2f} s, {added} MiB",
        flush=True,
    )
    return faults


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=2000, help="damaged files of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of formats")
    chosen = parser.parse_args()
    sys.exit(1 if fuzz(chosen.files, chosen.seed, chosen.only) else 0)
