import subprocess
import sys

import pytest

from tests.paths import ROOT
from trainer.parallel.interface import interface_towards

# Two machines: this namespace (10.7.0.1) and a second one (10.7.0.2) at the other end of a cable.
TWO_MACHINES = """
set -e
unshare --net sleep 100 & peer=$!
trap 'kill $peer' EXIT
sleep 0.5
ip link add near type veth peer name far
ip link set far netns $peer
ip link set lo up; ip addr add 10.7.0.1/24 dev near; ip link set near up
there() { nsenter --target $peer --net "$@"; }
there ip link set lo up; there ip addr add 10.7.0.2/24 dev far; there ip link set far up
there "$PYTHON" -c "$RANK" 1 http://10.7.0.1:8000 &
"$PYTHON" -c "$RANK" 0 http://127.0.0.1:8000 http://10.7.0.2:8000
wait %2
"""

RANK = """
import os, sys
from datetime import timedelta
import torch
from trainer.parallel.interface import interface_towards
timeout = timedelta(seconds=5 if os.environ.get("INTERFACE") else 20)
rank, servers = int(sys.argv[1]), sys.argv[2:]
os.environ["GLOO_SOCKET_IFNAME"] = os.environ.get("INTERFACE") or interface_towards(servers)
os.environ |= {"MASTER_ADDR": "10.7.0.1", "MASTER_PORT": "29511", "USE_LIBUV": "0"}
torch.distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=timeout)
number = torch.tensor([rank + 1.0])
torch.distributed.all_reduce(number)
print(os.environ["GLOO_SOCKET_IFNAME"], number.item(), flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def two_machines(interface: str = "") -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--map-root-user", "--net", "bash", "-c", TWO_MACHINES]
    environment = {
        "PYTHON": sys.executable,
        "RANK": RANK,
        "INTERFACE": interface,
        "PATH": "/usr/sbin:/usr/bin:/bin",
    }
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_server_on_this_machine_is_reached_by_the_loopback_interface():
    assert interface_towards(["http://no-such-host.invalid:8000"]) == "lo"  # the engine reports it
    assert interface_towards([]) == interface_towards(["http://127.0.0.1:8000"]) == "lo"


@pytest.mark.slow
def test_the_interface_towards_another_machine_carries_a_group_and_the_loopback_one_does_not():
    tried = subprocess.run(
        ["unshare", "--map-root-user", "--net", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    reached = two_machines()
    assert sorted(reached.stdout.split("\n")) == ["", "far 3.0", "near 3.0"], reached.stderr[-2000:]
    assert two_machines("lo").returncode != 0
