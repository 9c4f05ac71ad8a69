"""docs/guides/cluster.md typed on machines of the laboratory, as it stands but for the
installation.
"""

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray._private.utils import get_num_cpus

from sweep.driver.guard import sweep_processes
from tests.cluster.lab import Lab, Machine, Terminal, wait_until
from tests.faults.chaos import state_of
from tests.paths import ROOT
from tests.sweep.harness import write_space

RUNS = "/shared/runs"
_ALIVE = (
    "import ray; ray.init('auto'); print([one['NodeManagerAddress'] for one in ray.nodes() "
    "if "
    "one['Alive']])"
)
# The pause is no part of the result, so that a sweep under faults is slow and an undisturbed one is
# not.
_REWARD = """
import time
from pathlib import Path
from rewards.knights_knaves import score

def slow(texts, answers):
    time.sleep(float(Path("/shared/work/pause").read_text()))
    return [score(text, answer) for text, answer in zip(texts, answers)]
"""
SHORT = {
    "max_steps": 4,
    "evaluation.every_steps": 2,
    "checkpoint.every_steps": 2,
    "rollout.prompts_per_step": 4,
}
SHORT |= {"rollout.group_size": 4, "optim.update_batch_size": 16, "evaluation.sets.dev.size": 8}
SHORT |= {"reward.timeout_s": 60}


def typed(heading: str, head: str) -> list[list[str]]:
    """The indented blocks of commands below a heading of the page; HEAD is an address."""
    section = re.split(r"^## ", (ROOT / "docs/guides/cluster.md").read_text(), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(heading))
    blocks = re.findall(r"(?:^ {4}.+\n)+", text.replace("\\\n", " "), re.MULTILINE)
    return [
        [re.sub(r"\bHEAD\b", head, line.strip()) for line in block.splitlines()] for block in blocks
    ]


@dataclass
class Cluster:
    """The cluster of the page: a head and further nodes, and whoever sits at their terminals."""

    lab: Lab
    policy: Path
    terminals: dict[str, Terminal] = field(default_factory=dict)
    activate = f"{sys.prefix}/bin/activate"
    cpus = get_num_cpus()  # a rank that takes all of a node: no two are on one

    def make(self) -> None:
        """Type the page up to its sweep."""
        self.share()
        head = self.add("head")
        _, mode, make_token = typed("1.", self.head.address)
        head.type(f". {self.activate}", *mode, *make_token)
        head.type(*typed("2.", self.head.address)[0])
        wait_until(lambda: self.answers(5000), 120, lambda: f"MLflow: {head.shown()}")
        for name in ("node2", "node3"):
            self.add(name)
            self.join(name)
        head.type(*self.before_sweeps)

    def share(self) -> None:
        """Fill the shared folder."""
        (self.lab.shared / "venv").symlink_to(sys.prefix)
        work = self.lab.shared / "work"
        work.mkdir()
        (work / "slow.py").write_text(_REWARD)
        shutil.copytree(self.policy, self.lab.shared / "policy")
        self.space("my_space")
        self.pause(0)

    @property
    def head(self) -> Machine:
        return self.lab.machines["head"]

    @property
    def before_sweeps(self) -> list[str]:
        """What is typed once on a node from which sweeps are run."""
        return [line for line in typed("4.", self.head.address)[0] if not line.startswith("sweep ")]

    @property
    def sweeps(self) -> list[str]:
        """The sweeps that the page types."""
        return [line for line in typed("4.", self.head.address)[0] if line.startswith("sweep ")]

    def secrets(self) -> list[str]:
        """The password and the token that were made on the head."""
        return [
            (self.head.root / "root" / name).read_text().strip()
            for name in (".mlflow-password", ".ray/auth_token")
        ]

    def space(self, name: str, trials: int = 3, strategy: str = "none", **resources: Any) -> None:
        """Put a space of short trials on the shared folder, each rank of which takes all cores of a
        node.
        """
        overrides: dict[str, Any] = {
            "model.name_or_path": "/shared/policy",
            "reward.functions": {"slow:slow": 1.0},
        }
        overrides |= {**SHORT, "parallel.strategy": strategy}
        write_space(
            self.lab.shared / "work" / f"{name}.yaml",
            name=name,
            trainer={"preset": "tiny_kk", "overrides": overrides},
            baselines=[{"algorithm.ar_alpha": 0.2 * number} for number in range(trials)],
            search={"sampler": "random", "configurations": 0, "seed": 0},
            resources={"cpus_per_worker": self.cpus, **resources},
            limits={"max_failures": 0},
        )

    def pause(self, seconds: float) -> None:
        """Let every scoring of completions take so much longer."""
        (self.lab.shared / "work" / "pause").write_text(str(seconds))

    def add(self, name: str, shared: bool = True) -> Terminal:
        """Start a machine and copy the credentials to it, as the page says."""
        machine = self.lab.add(name, shared)
        if name != "head":
            for secret in (".mlflow-password", ".ray/auth_token"):
                (machine.root / "root" / secret).parent.mkdir(exist_ok=True)
                shutil.copy(self.head.root / "root" / secret, machine.root / "root" / secret)
        self.terminals[name] = self.lab.terminal(machine)
        return self.terminals[name]

    def join(self, name: str) -> None:
        """Type what makes a machine a node."""
        _, mode, _ = typed("1.", self.head.address)
        self.terminals[name].type(f". {self.activate}", *mode, *typed("3.", self.head.address)[0])

    def complete(self) -> None:
        """Have the head, node2 and node3, whatever the fault before has left."""
        nodes = {"node2", "node3"}
        for patience in (30, 100, 100):  # a node that has just joined is counted some seconds later
            with suppress(AssertionError):
                return wait_until(lambda: nodes <= self.alive(), patience, str)
            for name in nodes - self.alive():
                self.lab.mend(name)
                self.terminals[name].start("ray stop --force")
                self.terminals[name].wait()
                self.join(name)
        return wait_until(lambda: nodes <= self.alive(), 100, lambda: f"alive: {self.alive()}")

    def alive(self) -> set[str]:
        """The nodes that Ray counts on."""
        shown = self.terminals["head"].type(f'python -c "{_ALIVE}"')
        return {
            name for name, machine in self.lab.machines.items() if f"'{machine.address}'" in shown
        }

    def answers(self, port: int) -> bool:
        """Whether somebody listens on a port of the head, seen from the head."""
        test = f"exec 3<>/dev/tcp/{self.head.address}/{port}"
        return (
            subprocess.run(self.head.command("bash", "-c", test), capture_output=True).returncode
            == 0
        )

    def records(self, sweep: str) -> dict[str, int]:
        """How many lines of metrics each trial has written."""
        files = (self.lab.shared / "runs" / sweep).glob("trials/*/metrics.jsonl")
        return {path.parent.name: path.read_text().count("\n") for path in files}

    def state(self, sweep: str) -> dict[str, dict[str, Any]]:
        """What a sweep has ended with, once nothing of it is left running."""
        root = Path(RUNS) / sweep
        wait_until(
            lambda: not sweep_processes(root), 90, lambda: f"still there: {sweep_processes(root)}"
        )
        copied = self.lab.folder / "mlflow.db"  # SQLite cannot open a file by way of /proc
        for suffix in ("", "-wal", "-shm"):
            source = Path(f"{self.head.root}/var/tmp/mlflow.db{suffix}")
            if source.exists():
                shutil.copy(source, f"{copied}{suffix}")
        return state_of(self.lab.shared / "runs", f"sqlite:///{copied}", sweep, sweep)
