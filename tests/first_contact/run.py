"""Run the parts of `make first-contact`, each in processes of its own and limited in time.

All parts run even if one fails. The folder keeps each part's log, and ``report.json`` with
versions, seconds and the last lines of every part, which contain its figures or its error.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from loptune.terminal.table import print_table
from tests.first_contact.parts import Part
from tests.paths import ROOT
from trainer.doctor import Finding, versions

LAST_LINES = 40  # lines of each part's log in the report
HEARTBEAT_S = 15.0
GRACE_S = 45.0  # longer than torchrun waits for its ranks
_PART_VARIABLE = "LOPTUNE_FIRST_CONTACT"  # marks the processes of a part


@dataclass(frozen=True)
class PartResult:
    """How a part ended: state is passed, failed, timed out or not run; ``detail`` its last line or
    the reason.
    """

    name: str
    state: str
    seconds: float
    detail: str
    last_lines: tuple[str, ...] = ()


def run(part: Part, folder: Path) -> PartResult:
    """Run a part in a process group of its own, which is ended at its limit. The folder must exist;
    the part's log is written there.
    """
    if part.command is None:
        return PartResult(part.name, "not run", seconds=0.0, detail=part.missing)
    part_id = uuid.uuid4().hex
    log = folder / f"{part.name.replace(' ', '-').replace(':', '-')}.log"
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(part, part_id),
            cwd=folder,  # no file of the user's there shadows a module
        )
        try:
            in_time = _wait(process, part, started)
        finally:
            _end(process, part_id)
    seconds = time.monotonic() - started

    if not in_time:
        state = "timed out"
    elif process.returncode != 0:
        state = "failed"
    else:
        state = "passed"
    lines = _filled_lines(log)
    detail = lines[-1].strip(" =") if lines else ""  # pytest frames its last line with signs
    return PartResult(part.name, state, seconds, detail, tuple(lines[-LAST_LINES:]))


def _environment(part: Part, part_id: str) -> dict[str, str]:
    """Return the environment of a part's processes, which imports from this checkout."""
    own_programs = Path(sys.executable).parent  # FlashInfer calls ninja, which pip puts there
    import_path = [str(ROOT)]
    if os.environ.get("PYTHONPATH"):
        import_path.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "PATH": f"{own_programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(import_path),
        **part.environment,
        _PART_VARIABLE: part_id,
    }


def _filled_lines(log: Path) -> list[str]:
    """Return the lines of a log that are not blank."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _wait(process: "subprocess.Popen[bytes]", part: Part, started: float) -> bool:
    """Wait for the process, printing that it still runs; return False when its time is up."""
    while (left := started + part.limit_s - time.monotonic()) > 0:
        try:
            process.wait(timeout=min(HEARTBEAT_S, left))
            return True
        except subprocess.TimeoutExpired:
            print(
                f"  {part.name}: {time.monotonic() - started:.0f} of at most {part.limit_s:.0f} s",
                flush=True,
            )
    return False


def _end(process: "subprocess.Popen[bytes]", part_id: str) -> None:
    """End the part and all processes that it started, so that none keeps a GPU from the next part.

    Ranks of torchrun have process groups of their own, and torchrun gives them 30 s to save.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    process.wait()
    left = _processes_of(part_id)
    for descendant in left:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    psutil.wait_procs(left, timeout=GRACE_S)


def _processes_of(part_id: str) -> list[psutil.Process]:
    """Return the running processes that a part has started, including orphans such as Ray's
    daemons.
    """
    found = []
    for candidate in psutil.process_iter():
        with suppress(psutil.Error):
            if candidate.environ().get(_PART_VARIABLE) == part_id:
                found.append(candidate)
    return found


def run_parts(
    chosen: Sequence[Part],
    findings: Sequence[Finding],
    folder: Path,
    cannot_tell: Sequence[str] = (),
) -> list[PartResult]:
    """Run the parts sequentially, print a table, and rewrite ``report.json`` after each.
    ``cannot_tell`` are the questions that they leave open.
    """
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, part in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {part.name}: {part.question}", flush=True)
        outcome = run(part, folder)
        outcomes.append(outcome)
        print(
            f"  {outcome.state} after {outcome.seconds:.0f} s: {outcome.detail[:150]}", flush=True
        )
        report = {
            "versions": versions(),
            "machine": [asdict(finding) for finding in findings],
            "parts": [asdict(each) for each in outcomes],
            "cannot_tell": list(cannot_tell),
        }
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    rows = [[each.name, each.state, f"{each.seconds:.0f}", each.detail[:80]] for each in outcomes]
    print_table(["part", "result", "seconds", "last line"], rows)
    for question in cannot_tell:
        print(f"not tested by these parts: {question}")
    print(
        f"{folder / 'report.json'} holds versions, figures and errors; the logs are in the same "
        "folder"
    )
    return outcomes
