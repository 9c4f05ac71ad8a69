"""``python -m trainer``, also under torchrun and `accelerate launch`."""

import sys
from pathlib import Path

# `-m` puts the folder where the user stands first: a rewards.py there must not hide our package of that name.
if Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    sys.path.append(sys.path.pop(0))

from trainer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
