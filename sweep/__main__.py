"""``python -m sweep``."""

import sys
from pathlib import Path

# `-m` puts the folder where the user stands first: a trainer/ there must not hide our package of that name.
if Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    sys.path.append(sys.path.pop(0))

from sweep.cli import main

if __name__ == "__main__":
    sys.exit(main())
