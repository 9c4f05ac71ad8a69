"""``trainer doctor``: report what this machine has, and on demand test it part by part."""

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loptune.errors import ConfigError
from loptune.terminal.arguments import add_json, add_runs_dir
from loptune.terminal.table import print_json, print_table
from trainer.doctor.machine import Finding, ask_torch, examine, unanswered
from trainer.doctor.parts import Part, parts, run_parts, this_machine, untold


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer doctor``."""
    parser.add_argument(
        "--run",
        nargs="*",
        metavar="PART",
        help="run these parts one after the other, or all that this machine can run",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the parts, and why some cannot run here"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("doctor-report"),
        help="folder of the parts' logs and report.json (default: doctor-report)",
    )
    add_json(parser)
    add_runs_dir(parser)


def carry_out_doctor(arguments: argparse.Namespace) -> int:
    """Report this machine's hardware and software; with ``--run`` run parts. Return 1 if something
    there does not work or a part failed.
    """
    folder = arguments.folder.absolute()
    torch_report = ask_torch()
    machine = this_machine(len(torch_report.gpus))
    offered = parts(machine, folder)
    if arguments.list:
        _print_parts(offered)
        return 0
    findings = examine(arguments.runs_dir.absolute(), torch_report)
    broken = any(finding.state == "problem" for finding in findings)
    if arguments.run is None:
        _print_findings(findings, offered, as_json=arguments.json)
        return int(broken)
    chosen = chosen_parts(arguments.run, offered)
    outcomes = run_parts(chosen, findings, folder, untold(machine))
    return int(any(outcome.state in ("failed", "timed out") for outcome in outcomes))


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


def _print_findings(findings: Sequence[Finding], offered: Sequence[Part], as_json: bool) -> None:
    open_questions = unanswered(findings)
    if as_json:
        print_json(
            {
                "machine": [asdict(finding) for finding in findings],
                "unknown": open_questions,
                "parts": {part.name: part.missing or "can run" for part in offered},
            }
        )
        return
    rows = [[row.item, row.state, row.found, row.advice] for row in findings]
    print_table(["", "state", "found", "next"], rows, width=160)
    print("\nThis report cannot show:")
    for question in open_questions:
        print(f"  - {question}")
    able = [part for part in offered if part.command is not None]
    print(
        f"\nTo test this machine: trainer doctor --run runs {len(able)} of {len(offered)} parts, "
        f"trainer doctor --run {able[0].name} {able[1].name} runs two; --list describes them."
    )
