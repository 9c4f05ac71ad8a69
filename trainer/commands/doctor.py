"""``trainer doctor``: check this machine for training."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from loptune.terminal.commands import Command, RunsDir
from loptune.terminal.table import print_table
from trainer.doctor import Finding, ask_torch, examine, unanswered


def doctor(*, runs_dir: RunsDir = Path("runs")) -> list[Finding]:
    """Report what this machine can run: GPUs, libraries, compiler, memory and disk. The report
    lists what is missing, and the questions that only a run can answer.
    """
    return examine(runs_dir.absolute(), ask_torch())


def _show(findings: list[Finding]) -> None:
    rows = [[row.item, row.state, row.found, row.advice] for row in findings]
    print_table(["", "state", "found", "next"], rows, width=160)
    print("\nThis report cannot show:")
    for question in unanswered(findings):
        print(f"  - {question}")


def _fields(findings: list[Finding]) -> dict[str, Any]:
    return {"machine": [asdict(finding) for finding in findings], "unknown": unanswered(findings)}


def _exit_code(findings: list[Finding]) -> int:
    """Return 1 if anything is present but does not work, else 0."""
    return int(any(finding.state == "problem" for finding in findings))


COMMANDS = {
    "doctor": Command(
        function=doctor, show=_show, fields=_fields, example="trainer doctor", exit_code=_exit_code
    )
}
