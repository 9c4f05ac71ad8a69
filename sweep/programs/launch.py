"""Start a command that ends, with everything it ever started, when the rank that asked for it does.

python -m sweep.programs.launch LIFELINE_FD COMMAND ...
"""

import os
import signal
import sys

from rewards.supervisor import supervise

if __name__ == "__main__":
    # SIGTERM goes to the whole group, and is meant for the command: a shell dies of it while its
    # script still saves.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    supervise(int(sys.argv[1]), lambda: bool(asked))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
