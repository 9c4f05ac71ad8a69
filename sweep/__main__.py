"""``python -m sweep``, and the command ``sweep``."""

import sys
from pathlib import Path

# `-m` puts the folder where the user stands first: a trainer/ there must not hide our package of
# that name.
if Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    sys.path.append(sys.path.pop(0))


def main() -> int:
    """Run `sweep.cli.main`; a Ctrl-C while it is imported ends quietly, too."""
    try:
        from sweep.cli import main as carry_out
    except KeyboardInterrupt:
        return 130
    return carry_out()


if __name__ == "__main__":
    sys.exit(main())
