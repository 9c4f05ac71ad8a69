"""Entry point of ``python -m trainer``, also under torchrun and `accelerate launch`, and of the
``trainer`` command.
"""

import sys
from pathlib import Path

# `-m` puts the current folder first on sys.path; move it last, so that a user's rewards.py does not
# shadow our package.
if Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    sys.path.append(sys.path.pop(0))

try:
    from trainer.cli import main
except KeyboardInterrupt:
    sys.exit(130)  # exit quietly on Ctrl-C during the import

if __name__ == "__main__":
    sys.exit(main())
