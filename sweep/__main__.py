"""``python -m sweep``, and the command ``sweep``."""

import sys
from pathlib import Path

# `-m` puts the folder where the user stands first: a trainer/ there must not hide our package of
# that name.
if Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    sys.path.append(sys.path.pop(0))

try:
    from sweep.cli import main
except KeyboardInterrupt:
    sys.exit(130)  # a Ctrl-C while it is imported ends quietly, too

if __name__ == "__main__":
    sys.exit(main())
