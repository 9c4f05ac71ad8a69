"""Start a command that ends, with everything it ever started, when the rank that asked for it does.

python -m sweep.programs.launch LIFELINE_FD COMMAND ...
"""

import os
import signal
import sys

from rewards.supervisor import supervise

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which goes to the whole group, and is meant for the command
    supervise(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
