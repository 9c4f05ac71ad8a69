"""``python -m sweep``, and the command ``sweep``."""

import gc
import sys
from pathlib import Path

# `-m` puts the current folder first on sys.path: a folder trainer/ in it must not hide our package.
if Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    sys.path.append(sys.path.pop(0))

# Garbage collection takes a fifth of the import time, and imports leave no garbage.
gc.set_threshold(50_000)

try:
    from sweep.cli import main
except KeyboardInterrupt:
    sys.exit(130)  # Ctrl-C during the import exits quietly, too

if __name__ == "__main__":
    sys.exit(main())
