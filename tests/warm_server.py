"""``warm_server.py SOCKET OWNER``: import what most processes of tests import, then fork one for
each request, until the process OWNER has ended. See `tests.warm`.
"""

# ruff: noqa: E402
import sys

del sys.path[0]  # this folder

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = (
    "transformers.models.qwen2.modeling_qwen2",
    "trainer.loop",
    "trainer.api",
    "trainer.parallel.deepspeed",
    "deepspeed",
    "sweep.cli",
    "sweep.driver.run",
    "sweep.commands.start",
)


class Forked(Exception):
    """Leads a forked process out of the server's loop."""

    def __init__(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self.request = request
        self.descriptors = descriptors


class Server:
    """Forks a process for each connection, whose end it reports there."""

    def __init__(self, path: str) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(f"{path}.new")
        self.listening.listen(64)
        os.rename(f"{path}.new", path)  # nobody connects before
        self.waiting = selectors.DefaultSelector()
        self.processes: dict[socket.socket, int] = {}  # connection -> process

    def serve(self, owner: int) -> None:
        ended = os.pidfd_open(owner)
        self.waiting.register(ended, selectors.EVENT_READ)
        self.waiting.register(self.listening, selectors.EVENT_READ, self.accept)
        while True:
            for key, _ in self.waiting.select():
                if key.fileobj == ended:
                    return
                key.data()

    def accept(self) -> None:
        connection, _ = self.listening.accept()
        header, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        (length,) = struct.unpack("!I", header)
        content = b""
        while len(content) < length:
            part = connection.recv(length - len(content))
            if not part:  # the client has been killed
                return
            content += part
        child = os.fork()
        if child == 0:
            self.waiting.close()
            self.listening.close()
            for other in (*self.processes, connection):
                other.close()
            raise Forked(json.loads(content), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self.processes[connection] = child
        handle = os.pidfd_open(child)
        self.waiting.register(
            connection, selectors.EVENT_READ, lambda: self.pass_signal(connection)
        )
        self.waiting.register(
            handle, selectors.EVENT_READ, lambda: self.report_end(connection, handle)
        )

    def pass_signal(self, connection: socket.socket) -> None:
        """Pass on a signal; where the client has been killed, kill its processes."""
        child = self.processes.get(connection)
        if child is None:  # it has ended at the same time
            return
        number = b""
        with suppress(ConnectionError):
            number = connection.recv(1)
        if number:
            os.kill(child, number[0])
            return
        self.waiting.unregister(connection)
        os.kill(child, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it was not yet the leader of a group
            os.killpg(child, signal.SIGKILL)

    def report_end(self, connection: socket.socket, handle: int) -> None:
        _, status = os.waitpid(self.processes.pop(connection), 0)
        self.waiting.unregister(handle)
        os.close(handle)
        if connection in self.waiting.get_map():
            self.waiting.unregister(connection)
            with suppress(ConnectionError):  # the client has been killed
                connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
        connection.close()


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become the process that a request asks for."""
    os.setsid()
    # a shell without job control, as `make test &` in a script, ignores it for all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True, line_buffering=True)  # as PYTHONUNBUFFERED asks for
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.modules["numpy.random"].seed()  # as Python does with its own after a fork
    run(request["words"])


def run(words: list[str]) -> None:
    """Run ``[-u] [-P] -m MODULE ARGUMENTS`` or ``[-u] [-P] SCRIPT ARGUMENTS`` as ``python``."""
    if words[0] == "-u":
        words = words[1:]
    here = words[0] != "-P"
    if not here:
        words = words[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        if here:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        if here:
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    path, owner = sys.argv[1:]
    gc.disable()  # a fifth of the time of imports
    for module in MODULES:
        import_module(module)
    gc.enable()
    gc.freeze()  # a forked process copies no page of what all share
    try:
        Server(path).serve(int(owner))
    except Forked as forked:
        request, descriptors = forked.request, forked.descriptors
    else:
        return
    become(request, descriptors)  # and end as an interpreter does


if __name__ == "__main__":
    main()
