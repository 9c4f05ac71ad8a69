"""Run a command, and kill it with all its descendants when the rank that started it ends.

python -m sweep.programs.launch LIFELINE_FD COMMAND ...
"""

import os
import signal
import sys

from rewards.supervisor import supervise

if __name__ == "__main__":
    # SIGTERM is sent to the whole process group, but only the command should handle it: otherwise
    # the shell would exit while its script is still saving.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    supervise(int(sys.argv[1]), lambda: bool(asked))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
