"""Draw the output of a command as a terminal, with long outputs cut in the middle.

make demo | tee FILE; python docs/record_terminal.py "make demo" FILE PICTURE.svg
"""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_WIDTH = 118
_FIRST = 12  # number of lines before the cut
_LAST = 12  # number of lines after the cut
_COLORS = {"finished": "green", "best:": "bold", "error": "red", "sweep ": "cyan"}


def main(command: str, output: Path, picture: Path) -> None:
    """Write the picture of a prompt, the command and its output."""
    lines = output.read_text(encoding="utf-8").splitlines()
    cut = len(lines) - _FIRST - _LAST
    if cut > 0:
        lines = [*lines[:_FIRST], f"... {cut} more lines ...", *lines[-_LAST:]]
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold green"))
    for line in lines:
        text = Text(line)
        for word, style in _COLORS.items():
            text.highlight_words([word], style)
        console.print(text, soft_wrap=False)
    console.print()  # otherwise the picture ends within the last line
    console.save_svg(str(picture), title=command)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
