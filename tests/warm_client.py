"""``warm_client.py SOCKET WORDS``: ``python WORDS`` by the server of `tests.warm`, in whose place
this process stands. It passes on signals and ends as the forked process has ended.

It is run without site-packages, which takes a hundredth of what it saves.
"""

import json
import os
import signal
import socket
import struct
import sys


def main() -> None:
    path, *words = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    content = json.dumps(request).encode()
    socket.send_fds(server, [struct.pack("!I", len(content))], [0, 1, 2])
    server.sendall(content)
    answer = server.recv(4)
    if len(answer) < 4:
        sys.exit("the server of tests/warm.py has ended")
    (status,) = struct.unpack("!i", answer)
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
