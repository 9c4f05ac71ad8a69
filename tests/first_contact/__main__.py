"""The first hour on a machine with GPUs, part after part: ``make first-contact``.

The parts come in the order in which they teach most. Without a GPU they run at reduced size on the
CPU, if they can. Nothing is downloaded: models have random weights, and prompts are generated.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from loptune.terminal.table import print_table
from tests.first_contact.parts import Part, parts, this_machine, untold
from tests.first_contact.run import run_parts
from trainer.doctor import ask_torch, examine


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts named on the command line, or all. Return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="make first-contact", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="part to run (default: all)")
    parser.add_argument("--list", action="store_true", help="list the parts, and run none")
    parser.add_argument("--folder", type=Path, default=Path("doctor-report"))
    arguments = parser.parse_args(words)
    folder = arguments.folder.absolute()
    torch_report = ask_torch()
    machine = this_machine(len(torch_report.gpus))
    offered = parts(machine, folder)
    if arguments.list:
        print_parts(offered)
        return 0
    try:
        chosen = chosen_parts(arguments.parts, offered)
    except ValueError as error:
        parser.error(str(error))
    findings = examine(folder, torch_report)
    outcomes = run_parts(chosen, findings, folder, untold(machine))
    return int(any(outcome.state in ("failed", "timed out") for outcome in outcomes))


def chosen_parts(names: Sequence[str], offered: Sequence[Part]) -> list[Part]:
    """Return the parts of these names in their own order; all parts without a name.

    Raises:
        ValueError: no part has such a name.
    """
    known = [part.name for part in offered]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1) or known
            raise ValueError(f"no part is called {name!r}; choose {', '.join(near)}")
    return [part for part in offered if not names or part.name in names]


def print_parts(offered: Sequence[Part]) -> None:
    """Print each part with its time limit, or the reason why it cannot run here."""
    rows = []
    for part in offered:
        here = part.missing or f"at most {part.limit_s / 60:.0f} min"
        rows.append([part.name, here, part.question])
    print_table(["part", "here", "question"], rows)


if __name__ == "__main__":
    sys.exit(main())
