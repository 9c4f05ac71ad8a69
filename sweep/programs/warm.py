"""An interpreter that imports modules once, then forks a process for each trial of a Python
command. `sweep.programs.warm_interpreter` starts it.

``python sweep/programs/warm.py SOCKET_FD MODULE ...``. It runs as a file and imports no loptune
module by name, because a trial may have packages with the same names.
"""

# ruff: noqa: E402
import sys

del sys.path[0]  # the folder of this file, which must not be on a trial's import path

import gc
import importlib.util
import json
import os
import signal
import socket
import struct
import threading
import traceback
import types
from importlib import import_module
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("!I")
# a thread of jemalloc, which restarts it after a fork
_FORK_SAFE_THREADS = ("jemalloc_bg_thd",)


def main() -> None:
    """Import the modules, then fork a process for each request until the rank closes the
    connection.
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    supervisor = _module_at(Path(__file__).parents[2] / "rewards" / "supervisor.py")
    problem = _preload(sys.argv[2:])
    while (request := _receive(connection)) is not None:
        words, environment, descriptors = request
        if problem:
            _close(descriptors)
            _send(connection, {"problem": problem})
            continue
        child = os.fork()
        if child == 0:
            connection.close()
            try:
                _become_trial(words, environment, descriptors, supervisor)
            except SystemExit:
                raise
            except BaseException:
                # as the interpreter would if it ran the script directly
                traceback.print_exc()
                sys.exit(1)
            sys.exit(0)
        _close(descriptors)
        _send(connection, {"pid": child})
        _, status = os.waitpid(child, 0)
        _send(connection, {"code": os.waitstatus_to_exitcode(status)})


def _preload(modules: list[str]) -> str:
    """Import modules. Return the reason why the process cannot be forked afterwards, or an empty
    string.
    """
    sys.path.insert(0, os.getcwd())
    gc.disable()  # garbage collection takes a fifth of the import time
    try:
        for entry in modules:
            module, _, name = entry.partition(":")
            imported = import_module(module)
            if name:  # a package such as trl imports most modules when a name is first used
                getattr(imported, name)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path.remove(os.getcwd())
        gc.freeze()  # keeps memory pages of shared objects from being copied in trials
        gc.enable()
    return _unsafe()


def _unsafe() -> str:
    """Return a description of resources that a fork would lose (threads, a GPU in use), or an empty
    string.
    """
    threads = [thread.name for thread in threading.enumerate()][1:]
    if not threads:
        for task in os.listdir("/proc/self/task"):
            name = Path(f"/proc/self/task/{task}/comm").read_text("utf-8", "replace").strip()
            if int(task) != os.getpid() and name not in _FORK_SAFE_THREADS:
                threads.append(name)
    if threads:
        return f"the import started threads: {', '.join(threads)}"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the descriptor of the directory listing itself
            continue
        if target.startswith("/dev/nvidia"):
            return "the import used a GPU"
    return ""


def _become_trial(
    words: list[str], environment: dict[str, str], descriptors: list[int], supervisor: Any
) -> None:
    """Run a Python command line in this process, supervised like any command. ``descriptors`` are
    its standard output, its standard error and the lifeline.
    """
    output, errors, lifeline = descriptors
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, output, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    supervisor.supervise(lifeline, lambda: bool(asked))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    if "numpy.random" in sys.modules:
        # Python's generator is reseeded after a fork. NumPy's is not, so all trials would share
        # random numbers.
        sys.modules["numpy.random"].seed()
    _run(words)


def _run(words: list[str]) -> None:
    """Run ``[-P] -m MODULE ARGUMENTS`` or ``[-P] SCRIPT ARGUMENTS`` as ``python`` runs it."""
    adds_folder = words[0] != "-P"  # whether modules in the folder of the program are found
    words = words if adds_folder else words[1:]
    module = types.ModuleType("__main__")
    if words[0] == "-m":
        if adds_folder:
            sys.path.insert(0, os.getcwd())
        name = words[1]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
        if spec is None:
            sys.exit(f"{sys.executable}: No module named {name}")
        code = spec.loader.get_code(name)  # type: ignore[union-attr]
        path = str(spec.origin)
        module.__spec__ = spec
        module.__package__ = spec.parent
        arguments = words[2:]
    else:
        path, *arguments = words
        if adds_folder:
            sys.path.insert(0, str(Path(path).resolve().parent))
        try:
            code = compile(Path(path).read_bytes(), path, "exec")
        except OSError as error:
            print(f"{sys.executable}: can't open file '{path}': {error}", file=sys.stderr)
            sys.exit(2)
    module.__file__ = path
    sys.argv = [path, *arguments]
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_loptune_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "the file is not part of the package"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    try:
        connection.sendall(_HEADER.pack(len(content)) + content)
    except OSError:  # the rank has ended, which ends every trial through its lifeline
        sys.exit(0)


def _receive(connection: socket.socket) -> tuple[list[str], dict[str, str], list[int]] | None:
    header, descriptors, _, _ = socket.recv_fds(connection, _HEADER.size, 3)
    if not header:
        return None
    content = connection.recv(_HEADER.unpack(header)[0], socket.MSG_WAITALL)
    request = json.loads(content)
    return request["words"], request["environment"], list(descriptors)


if __name__ == "__main__":
    main()
