import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from tests.paths import ROOT
from trainer.checkpoint.on_disk import steps_on_disk
from trainer.parallel.interface import interface_for_urls

NAMESPACE = ["unshare", "--map-root-user", "--net"]

# Two machines: this namespace (10.7.0.1) and a second one (10.7.0.2) at the other end of a cable.
TWO_MACHINES = """
set -e
unshare --net sleep 600 & peer=$!
trap 'kill $peer' EXIT
while [ /proc/$peer/ns/net -ef /proc/$$/ns/net ]; do sleep 0.1; done
ip link add near type veth peer name far
ip link set far netns $peer
ip link set lo up; ip addr add 10.7.0.1/24 dev near; ip link set near up
there() { nsenter --target $peer --net "$@"; }
there ip link set lo up; there ip addr add 10.7.0.2/24 dev far; there ip link set far up
there bash -c "$FAR" & far=$!
bash -c "$NEAR"
wait $far
"""

RANK = """
import os, sys
from datetime import timedelta
import torch
from trainer.parallel.interface import interface_for_urls
timeout = timedelta(seconds=5 if os.environ.get("INTERFACE") else 100)
rank, servers = int(sys.argv[1]), sys.argv[2:]
os.environ["GLOO_SOCKET_IFNAME"] = os.environ.get("INTERFACE") or interface_for_urls(servers)
os.environ |= {"MASTER_ADDR": "10.7.0.1", "MASTER_PORT": "29511", "USE_LIBUV": "0"}
torch.distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=timeout)
number = torch.tensor([rank + 1.0])
torch.distributed.all_reduce(number)
print(os.environ["GLOO_SOCKET_IFNAME"], number.item(), flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def two_machines(near, far, log, **environment):
    """Start a command on each of two machines."""
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    environment |= {"NEAR": near, "FAR": far, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/sbin:/usr/bin:/bin",
        "HOME": os.environ["HOME"],
    }
    command = [*NAMESPACE, "bash", "-c", TWO_MACHINES]
    with log.open("w") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def test_a_server_on_this_machine_is_reached_by_the_loopback_interface():
    # the engine reports it
    assert interface_for_urls(["http://no-such-host.invalid:8000"]) == "lo"
    assert interface_for_urls([]) == interface_for_urls(["http://127.0.0.1:8000"]) == "lo"


@pytest.mark.slow
def test_a_group_uses_the_interface_towards_other_machines(tmp_path):
    near = '"$PYTHON" -c "$RANK" 0 http://127.0.0.1:8000 http://10.7.0.2:8000'
    far = '"$PYTHON" -c "$RANK" 1 http://10.7.0.1:8000'
    log = tmp_path / "log"
    two_machines(near, far, log, RANK=RANK).wait(120)
    assert {"far 3.0", "near 3.0"} <= {*log.read_text().splitlines()}, log.read_text()
    assert two_machines(near, far, log, RANK=RANK, INTERFACE="lo").wait(120) != 0


def start_training(folder, command):
    """``trainer`` by torchrun on two machines that share a folder."""
    launch = '"$PYTHON" -m torch.distributed.run --nnodes 2 --master-addr 10.7.0.1 --node-rank'
    near, far = (
        f"{launch} {rank} -m trainer {command} --runs-dir {folder} --offline" for rank in (0, 1)
    )
    return two_machines(near, far, folder / "log")


def network_of_second_node(process):
    """The network namespace of the second machine's torchrun; None of another process, or of one
    that has ended.
    """
    with suppress(psutil.NoSuchProcess, OSError):
        if "--node-rank 1" in " ".join(process.cmdline()):
            return os.readlink(f"/proc/{process.pid}/ns/net")
    return None


@pytest.mark.slow
def test_a_run_that_loses_one_of_two_machines_ends_as_usual(tiny_policy, tmp_path):
    settings = {
        "model.name_or_path": tiny_policy,
        "parallel.strategy": "deepspeed",
        "parallel.zero_stage": 2,
        "reward.functions": "{tests.gpu.varied_reward:varied: 1.0}",
        "rollout.prompts_per_step": 2,
        "rollout.max_new_tokens": 8,
        "optim.update_batch_size": 16,
        "checkpoint.every_steps": 1,
        "evaluation.sets": "{dev: {split: dev, size: 2}}",
        "evaluation.every_steps": 1,
        "evaluation.at_start": False,
    }
    run = " ".join(
        ["run tiny_kk", *(f"'{key}={value}'" for key, value in settings.items()), "--name"]
    )
    lost = start_training(tmp_path, f"{run} lost max_steps=1000")
    checkpoints = tmp_path / "lost" / "checkpoints"
    while lost.poll() is None and steps_on_disk(checkpoints)[:1] < [2]:
        time.sleep(0.1)
    assert lost.poll() is None, (tmp_path / "log").read_text()
    everything = psutil.Process(lost.pid).children(recursive=True)
    (network,) = filter(None, map(network_of_second_node, everything))
    for candidate in psutil.process_iter():
        with suppress(OSError):
            if os.readlink(f"/proc/{candidate.pid}/ns/net") == network:
                candidate.kill()
    assert lost.wait(120) != 0  # the other machine's processes end by themselves
    last = steps_on_disk(checkpoints)[0] + 2
    for command in (f"resume lost max_steps={last}", f"{run} whole max_steps={last}"):
        training = start_training(tmp_path, command)
        with suppress(subprocess.TimeoutExpired):
            training.wait(300)
        assert training.poll() == 0, (tmp_path / "log").read_text()
    whole, resumed = (
        tmp_path / name / f"checkpoints/step-{last}/manifest.json" for name in ("whole", "lost")
    )
    # hashes of weights and both states
    assert json.loads(whole.read_text()) == json.loads(resumed.read_text())
    assert {f"training_state-{rank}-of-2.safetensors" for rank in (0, 1)} <= json.loads(
        whole.read_text()
    ).keys()
