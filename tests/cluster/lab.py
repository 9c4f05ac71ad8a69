"""A laboratory of machines made of namespaces: each has its own address, hostname, processes, hosts
file and /tmp.

For root, or for anybody within `unshare --user --map-root-user`. Nothing of the host's network is
touched: the cables of the machines end in a bridge that has a namespace of its own, as
``10.77.0.254``.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.paths import ROOT

NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
_BRIDGE = "bridge0"
_UNSHARE = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(ROOT),
    # All machines share the cores of one: patience, and nothing that no sweep needs.
    "RAY_raylet_start_wait_time_s": "200",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # else a busy machine leaves ranks nothing
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_WORKERS": "1",
    "OMP_NUM_THREADS": "1",
}
_BOOT = """
set -e
name=$1 shared=$2 hosts=$3; shift 3
mount --make-rprivate /
mount -t tmpfs lab "$PWD"; cd "$PWD"
for entry in /*; do
    case $entry in
        /proc|/tmp|/root|/home|/shared) mkdir ".$entry" ;;
        *) if [ -L "$entry" ]; then cp -P "$entry" ".$entry"
           elif [ -d "$entry" ]; then mkdir ".$entry"; mount --rbind "$entry" ".$entry"; fi ;;
    esac
done
for folder in var/tmp dev/shm; do mount -t tmpfs lab $folder; done
chmod 1777 tmp
mkdir -p shared; if [ "$shared" ]; then mount --bind "$shared" shared; fi
# the project and its Python, where they are in a folder that is the machine's own
for path in "$@"; do
    if [ ! -e ".$path" ]; then mkdir -p ".$path"; mount --rbind "$path" ".$path"; fi
done
printf "$hosts" > tmp/hosts; mount --bind tmp/hosts etc/hosts
mount -t proc proc proc
hostname "$name"
ip link set lo up
echo booted
# process 1, which ends with its standard input
exec chroot . /bin/bash -c 'while read -r _; do :; done'
"""


def obstacle() -> str:
    """Why there can be no laboratory here; empty if there can."""
    try:
        tried = subprocess.run(
            [*_UNSHARE, "ip", "link", "add", "lab", "type", "bridge"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        return f"there is no {error.filename}"
    return tried.stderr.strip()


@dataclass
class Machine:
    """One machine: its first process ends when the laboratory closes its standard input."""

    name: str
    address: str
    boot: "subprocess.Popen[str]"
    pid: int  # of its first process, seen from here
    root: Path  # its files, seen from here

    def processes(self, words: str = "") -> list[psutil.Process]:
        """Its processes, or those with these words in their command lines."""
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        matching = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/pid").readlink() == space and words in " ".join(
                    process.cmdline()
                ):
                    matching.append(process)
        return matching

    def command(self, *words: object) -> list[str]:
        """The command line that runs these words on the machine."""
        spaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--root", "--wd"]
        environment = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
        return [
            "nsenter",
            "--target",
            str(self.pid),
            *spaces,
            "env",
            "-i",
            *environment,
            *map(str, words),
        ]


class Terminal:
    """A shell on a machine that somebody types lines into; what it shows goes to a file."""

    def __init__(self, machine: Machine, shown: Path) -> None:
        self.machine = machine
        self._shown = shown
        self._read = 0
        self._shell = subprocess.Popen(
            machine.command("bash"),
            stdin=subprocess.PIPE,
            stdout=shown.open("ab"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self, line: str) -> None:
        """Type a line and do not wait for its end."""
        self._read = self._shown.stat().st_size
        with self._shown.open("a") as shown:
            shown.write(f"{self.machine.name}$ {line}\n")
        self._shell.stdin.write(f"{{ {line}\n}} </dev/null; printf '\\001%s\\n' $?\n")
        self._shell.stdin.flush()

    def wait(self, timeout: float = 300) -> tuple[int, str]:
        """Wait for the line's end; returns its exit code and what was shown."""
        ended: re.Match[str] | None = None

        def over() -> bool:
            nonlocal ended
            ended = re.search("\001([0-9]+)\n", self.shown())
            return ended is not None

        wait_until(
            over, timeout, lambda: f"{self.machine.name} does not come back:\n{self.shown()}"
        )
        assert ended is not None
        return int(ended[1]), self.shown()[: ended.start()]

    def shown(self) -> str:
        """What was shown since the last line was typed."""
        return self._shown.read_bytes()[self._read :].decode(errors="replace")

    def type(self, *lines: str, timeout: float = 300) -> str:
        """Type lines, each after the one before has ended well; returns what the last one
        showed.
        """
        text = ""
        for line in lines:
            self.start(line)
            code, text = self.wait(timeout)
            assert code == 0, f"{self.machine.name}$ {line}\n{text}\nexit code {code}"
        return text


@dataclass
class Lab:
    """Machines on one switch, and a folder that they share."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "shared").mkdir(parents=True)
        self.switch = self._boot("switch", OUTSIDE, shared=False)
        for words in (f"add {_BRIDGE} type bridge", f"set {_BRIDGE} up"):
            self._switch("ip", "link", *words.split())
        self._switch("ip", "address", "add", f"{OUTSIDE}/24", "dev", _BRIDGE)

    @property
    def shared(self) -> Path:
        """What the machines see as ``/shared``."""
        return self.folder / "shared"

    def add(self, name: str, shared: bool = True) -> Machine:
        """Start a machine and plug in its cable."""
        number = len(self.machines) + 1
        machine = self._boot(name, f"{NETWORK}.{number}", shared)
        cable = f"add {name} type veth peer name eth0 netns {machine.pid}"
        for words in (cable, f"set {name} master {_BRIDGE}", f"set {name} up"):
            self._switch("ip", "link", *words.split())
        for line in (
            f"address add {machine.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {OUTSIDE}",
        ):
            subprocess.run(machine.command("ip", *line.split()), check=True)
        self.machines[name] = machine
        return machine

    def cut(self, name: str) -> None:
        """Unplug the cable of a machine."""
        self._switch("ip", "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        self._switch("ip", "link", "set", name, "up")

    def terminal(self, machine: Machine) -> Terminal:
        """A new shell on a machine."""
        number = len(list(self.folder.glob("terminal-*")))
        return Terminal(machine, self.folder / f"terminal-{number:02d}-{machine.name}.txt")

    def close(self) -> None:
        """End all machines, and with them everything that runs there."""
        for machine in [*self.machines.values(), self.switch]:
            machine.boot.communicate()

    def _switch(self, *words: str) -> None:
        # Only the network of the switch: a machine's process is told by its number here.
        subprocess.run(["nsenter", "--target", str(self.switch.pid), "--net", *words], check=True)

    def _boot(self, name: str, address: str, shared: bool) -> Machine:
        root = self.folder / f"root-{name}"
        root.mkdir()
        local_hosts = f"127.0.0.1 localhost\n127.0.1.1 {name}\n"  # Debian's second line
        hosts = (
            local_hosts
            + "".join(f"{machine.address} {machine.name}\n" for machine in self.machines.values())
            + f"{address} {name}\n"
        )
        paths = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]
        boot = subprocess.Popen(
            [
                *_UNSHARE,
                "bash",
                "-c",
                _BOOT,
                "boot",
                name,
                self.shared if shared else "",
                hosts,
                *paths,
            ],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert boot.stdout.readline() == "booted\n", f"{name} does not start"
        (first,) = psutil.Process(boot.pid).children()
        return Machine(name, address, boot, first.pid, Path(f"/proc/{first.pid}/root"))


def wait_until(condition: Callable[[], bool], timeout: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
