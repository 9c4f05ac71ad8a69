"""What may happen to a cluster while a sweep runs there: each function lets one thing happen."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.cluster.lab import Terminal, wait_until
from tests.cluster.page import RUNS, Cluster

PAUSE_S = 5.0  # of each scoring until the fault has been noticed
NOTICED_S = 150


@dataclass
class Story:
    """A sweep and what happens to it; times are seconds since the fault."""

    cluster: Cluster
    sweep: str
    terminal: Terminal = field(init=False)  # at which the sweep was typed
    struck: float = 0.0
    noticed: float = 0.0

    def __post_init__(self) -> None:
        self.terminal = self.cluster.terminals["head"]

    def begin(self, running: int = 3) -> None:
        """Start the sweep; returns once so many trials train, each on a node of its own."""
        self.cluster.pause(PAUSE_S)
        self.terminal.start(self.cluster.sweeps[1].replace("my_space", self.sweep))
        wait_until(lambda: self.training() == running, 600, self.terminal.shown)
        self.struck = time.monotonic()

    def training(self) -> int:
        """How many trials have made a step."""
        # the first is an evaluation
        return sum(records >= 2 for records in self.cluster.records(self.sweep).values())

    def until(self, text: str) -> None:
        """Wait until the sweep says so."""
        wait_until(lambda: text in self.terminal.shown(), NOTICED_S, self.terminal.shown)
        self.noticed = time.monotonic() - self.struck

    def kill(self, node: str, words: str) -> None:
        """Kill the process of a node that has these words in its command line."""
        (process,) = self.cluster.lab.machines[node].processes(words)
        process.kill()


def raylet_killed(story: Story) -> None:
    """A node's raylet is killed."""
    story.begin()
    story.kill("node3", "/raylet/raylet ")
    story.until("retry not counted")


def link_cut_for_ever(story: Story) -> None:
    """A node's cable is out; it still sees the shared folder."""
    story.begin()
    story.cluster.pause(20)
    story.cluster.lab.cut("node3")
    story.until("retry not counted")


def nodes_join_late(story: Story) -> None:
    """A node without the shared folder joins, then one that has it."""
    story.cluster.terminals["node3"].type("ray stop --force")
    story.begin(running=2)
    story.cluster.pause(30)
    story.cluster.add("node4", shared=False)
    story.cluster.join("node4")
    story.until("retry not counted")
    story.cluster.join("node3")
    node = story.cluster.lab.machines["node3"]
    wait_until(lambda: bool(node.processes("RankWorker")), NOTICED_S, story.terminal.shown)


def link_cut_for_a_minute(story: Story) -> None:
    """A node's cable is out for a minute."""
    story.begin()
    story.cluster.pause(20)
    story.cluster.lab.cut("node3")
    time.sleep(60)
    story.cluster.lab.mend("node3")
    story.until("retry not counted")


def driver_killed(story: Story) -> None:
    """The driver is killed; the sweep is resumed from another node."""
    story.begin()
    story.kill("head", f"bin/sweep run {story.sweep}")
    story.until("[driver-killed]")
    story.terminal.wait()
    story.terminal = story.cluster.terminals["node2"]
    story.terminal.type(*story.cluster.before_sweeps)
    story.terminal.start(f"sweep resume {story.sweep} --address auto --runs-dir {RUNS}")


def mlflow_hangs(story: Story) -> None:
    """MLflow answers nobody for a minute."""
    story.begin()
    servers = story.cluster.lab.machines["head"].processes("mlflow")
    processes = [
        process for server in servers for process in (server, *server.children(recursive=True))
    ]
    for process in processes:
        process.suspend()
    time.sleep(60)
    for process in processes:
        process.resume()


def one_of_two_nodes_lost(story: Story) -> None:
    """The raylet of one of a trial's two nodes is killed."""
    story.begin(running=1)
    machines = story.cluster.lab.machines
    story.kill(
        next(name for name in ("node2", "node3") if machines[name].processes("RankWorker")),
        "/raylet/raylet ",
    )
    story.until("retry not counted")


FAULTS: list[Callable[[Story], None]] = [
    raylet_killed,
    driver_killed,
    nodes_join_late,
    link_cut_for_a_minute,
    link_cut_for_ever,
    mlflow_hangs,
]
