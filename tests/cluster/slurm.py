"""The job of examples/slurm under Slurm itself, on two machines of a laboratory.

make test-cluster, where Debian's slurm-wlm and munge are installed
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.driver.guard import sweep_processes
from tests.cluster.lab import Lab, Terminal, obstacle, wait_until
from tests.cluster.page import RUNS, Cluster
from tests.paths import ROOT
from tests.sweep.harness import results

pytestmark = pytest.mark.timeout(1500)
_KEY = "/shared/munge.key"
_MUNGE = (
    f"munged --force --key-file {_KEY} --socket /tmp/munge --pid-file /tmp/munge.pid "
    "--log-file /tmp/munge.log"
)
_CONFIGURATION = """
ClusterName=lab
SlurmctldHost=node1({first})
SlurmUser=root
AuthInfo=socket=/tmp/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation=/tmp
SlurmdSpoolDir=/tmp
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
SelectType=select/cons_tres
NodeName=node1 NodeAddr={first} CPUs={cpus} State=UNKNOWN
NodeName=node2 NodeAddr={second} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def slurm(tiny_policy: Path, tmp_path: Path) -> Iterator[tuple[Cluster, Terminal]]:
    """Slurm on two machines, and a terminal on the first."""
    if reason := obstacle() or next(
        (f"no {name}" for name in ("slurmctld", "munged") if not shutil.which(name)), ""
    ):
        pytest.skip(reason)
    cluster = Cluster(Lab(tmp_path / "lab"), tiny_policy)
    try:
        cluster.share()
        first, second = (cluster.lab.add(name) for name in ("node1", "node2"))
        text = _CONFIGURATION.format(first=first.address, second=second.address, cpus=cluster.cpus)
        (cluster.lab.shared / "slurm.conf").write_text(text)
        login, other = (cluster.lab.terminal(machine) for machine in (first, second))
        login.type(f"head -c 64 /dev/urandom > {_KEY}; chmod 400 {_KEY}")
        for terminal, daemons in ((login, "slurmctld && slurmd"), (other, "slurmd")):
            terminal.type("export SLURM_CONF=/shared/slurm.conf", _MUNGE, daemons)
        wait_until(lambda: login.type("sinfo -h -N -o %t").count("idle") == 2, 60, login.shown)
        yield cluster, login
    finally:
        cluster.lab.close()


def test_a_requeued_job_resumes_its_sweep(slurm: tuple[Cluster, Terminal]) -> None:
    cluster, login = slurm
    runs = cluster.lab.shared / "runs"
    cluster.pause(3)
    shutil.copy(ROOT / "examples" / "slurm" / "sweep.sbatch", cluster.lab.shared)
    submitted = login.type(
        f". {cluster.activate}",
        "cd /shared/work",
        f"sbatch --job-name=my_space --nodes=2 --cpus-per-task={cluster.cpus} "
        "--output=/shared/my_space-%j.log "
        f"/shared/sweep.sbatch my_space {RUNS} sweep run my_space.yaml --name my_space --offline",
    )
    job = submitted.split()[-1]
    log = cluster.lab.shared / f"my_space-{job}.log"
    wait_until(
        lambda: sum(map(bool, cluster.records("my_space").values())) >= 2,
        600,
        lambda: log.read_text() + login.type("squeue"),
    )
    cluster.pause(0)
    login.type(f"scontrol requeue {job}")
    over = re.compile("JobState=(COMPLETED|FAILED|NODE_FAIL)")  # a minute after the sweep
    wait_until(
        lambda: bool(over.search(login.type(f"scontrol show job {job}"))),
        900,
        lambda: log.read_text(),
    )
    assert "JobState=COMPLETED" in login.shown() and "Restarts=1" in login.shown(), log.read_text()
    assert not sweep_processes(Path(RUNS) / "my_space")
    assert {result["state"] for result in results(runs / "my_space").values()} == {"COMPLETE"}
    assert "resume" in log.read_text()
