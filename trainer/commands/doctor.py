"""``trainer doctor``: report what this machine has, and on demand test it part by part."""

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from loptune.errors import ConfigError
from loptune.terminal.commands import Command, Option, RunsDir
from loptune.terminal.table import print_table
from trainer.doctor.machine import Finding, ask_torch, examine, unanswered
from trainer.doctor.parts import Part, PartResult, parts, run_parts, this_machine, untold


@dataclass(frozen=True)
class Examination:
    """What `trainer doctor` found out about this machine."""

    offered: list[Part]
    findings: list[Finding] | None  # None: only the parts were listed
    # results of the parts that ran; None if no part was requested
    outcomes: list[PartResult] | None

    @property
    def exit_code(self) -> int:
        """Exit status: 1 if something does not work or a part failed."""
        if self.outcomes is not None:
            return int(any(each.state in ("failed", "timed out") for each in self.outcomes))
        return int(any(finding.state == "problem" for finding in self.findings or ()))


def doctor(
    *,
    run: Annotated[
        list[str] | None,
        Option(
            "run these parts sequentially, or all that this machine can run",
            metavar="PART",
            may_be_empty=True,
        ),
    ] = None,
    list: Annotated[bool, Option("list the parts, and why some cannot run here")] = False,
    folder: Annotated[
        Path, Option("folder of the parts' logs and report.json", is_path=True)
    ] = Path("doctor-report"),
    runs_dir: RunsDir = Path("runs"),
) -> Examination:
    """Report what this machine can run; with --run, test it part by part. The report names what is
    missing, and what it cannot show without running it.

    Raises:
        ConfigError: no part has such a name.
    """
    torch_report = ask_torch()
    machine = this_machine(len(torch_report.gpus))
    offered = parts(machine, folder.absolute())
    if list:
        return Examination(offered, None, None)
    findings = examine(runs_dir.absolute(), torch_report)
    if run is None:
        return Examination(offered, findings, None)
    chosen = chosen_parts(run, offered)
    outcomes = run_parts(chosen, findings, folder.absolute(), untold(machine))
    return Examination(offered, findings, outcomes)


def _show(examination: Examination) -> None:
    if examination.findings is None:
        _print_parts(examination.offered)
    elif examination.outcomes is None:  # else the parts printed while they ran
        _print_findings(examination.findings, examination.offered)


def chosen_parts(names: Sequence[str], offered: Sequence[Part]) -> list[Part]:
    """Return the parts of these names in their own order; all parts without a name.

    Raises:
        ConfigError: no part has such a name.
    """
    known = [part.name for part in offered]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"the parts are {', '.join(known)}"
            if near:
                hint = f"did you mean {near[0]!r}?"
            raise ConfigError(f"no part is called {name!r}", "--run", hint, code="unknown-part")
    return [part for part in offered if not names or part.name in names]


def _print_parts(offered: Sequence[Part]) -> None:
    rows = [
        [part.name, part.missing or f"at most {part.limit_s / 60:.0f} min", part.question]
        for part in offered
    ]
    print_table(["part", "here", "question"], rows)


def _print_findings(findings: Sequence[Finding], offered: Sequence[Part]) -> None:
    rows = [[row.item, row.state, row.found, row.advice] for row in findings]
    print_table(["", "state", "found", "next"], rows, width=160)
    print("\nThis report cannot show:")
    for question in unanswered(findings):
        print(f"  - {question}")
    able = [part for part in offered if part.command is not None]
    print(
        f"\nTo test this machine: trainer doctor --run runs {len(able)} of {len(offered)} parts, "
        f"trainer doctor --run {able[0].name} {able[1].name} runs two; --list describes them."
    )


def _fields(examination: Examination) -> dict[str, Any]:
    findings = examination.findings or []
    return {
        "machine": [asdict(finding) for finding in findings],
        "unknown": unanswered(findings),
        "parts": {part.name: part.missing or "can run" for part in examination.offered},
    }


COMMANDS = {
    "doctor": Command(
        function=doctor,
        show=_show,
        fields=_fields,
        example="trainer doctor --run driver vllm",
        exit_code=lambda examination: examination.exit_code,
    )
}
