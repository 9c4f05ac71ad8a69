"""``sweep gate import``: what the gate would have decided about the keeps of another loop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from loptune.run_names import command_line
from loptune.section import Positive
from loptune.terminal.commands import Option
from loptune.terminal.table import print_table
from sweep.commands.false_keeps import FalseKeeps, check_false_keeps

if TYPE_CHECKING:
    from sweep.gate.loop_record import Replay


def import_(
    record: Annotated[
        str | Path,
        Option(
            "results.tsv of autoresearch, autoresearch-rl or NeMo RL's auto-research skill, or "
            "autoresearch.jsonl of pi-autoresearch",
            is_path=True,
        ),
    ],
    *,
    metric: Annotated[str | None, Option("score column (default: taken from the file)")] = None,
    mode: Annotated[
        Literal["max", "min"] | None,
        Option("whether larger or smaller is better (default: from the file, else by its name)"),
    ] = None,
    sd: Annotated[
        Positive | None,
        Option("SD of a score between seeds, from `sweep noise` (default: estimated)"),
    ] = None,
    false_keeps: FalseKeeps = 0.1,
) -> "Replay":
    """Read the record of a loop that keeps every change with a better score, and report how many of
    these changes the gate would have kept. This command changes nothing.

    Raises:
        UserError: the file is not the record of a loop.
    """
    from sweep.gate.loop_record import read_record, replay

    check_false_keeps(false_keeps)
    return replay(read_record(Path(record), metric, mode), sd=sd, false_keeps=false_keeps)


def show_import(replayed: "Replay") -> None:
    """Print the keeps of a loop and what the gate would have decided."""
    record = replayed.record
    if replayed.keeps:
        rows = []
        for keep in replayed.keeps:
            outcome = "keep" if keep.would_keep else "undecided"
            error = "" if keep.error is None else f"{keep.error:.3g}"
            rows.append([keep.number, keep.description, f"{keep.gain:+.4g}", error, outcome])
        print_table(["run", "change", "gain", "standard error", "the gate"], rows)
    total = len(replayed.keeps)
    if replayed.sd is None:
        print(
            f"{len(record.entries)} runs, {total} keeps. Noise {replayed.sd_from}. Measure it with "
            "`sweep noise`, and pass it with --sd."
        )
    else:
        print(
            f"{len(record.entries)} runs, {total} keeps. Given one run of each, the gate would "
            f"have kept {replayed.would_keep} of them; the others are undecided: their gains may "
            f"be noise. SD of a score: {replayed.sd:.3g} ({replayed.sd_from})."
        )
    start = command_line(
        "sweep", "gate", "start", "camp", "--metric", record.metric, "--mode", record.mode
    )
    print(f"next: {start} --worthwhile GAIN")
