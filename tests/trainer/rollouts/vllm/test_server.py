"""Real vLLM servers on the CPU, started by `trainer serve`, against the model whose weights are
pushed to them.
"""

import asyncio
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
import requests
import torch
from safetensors.torch import save

from loptune.errors import EngineError
from tests.invariants.ranks import run_ranks
from tests.paths import ROOT
from tests.ports import quiet_port
from tests.refusals import refused
from tests.run_cli import run_cli
from tests.sockets import listening, open_to_others
from tests.trainer.rollouts.vllm.models import (
    AGREEMENT,
    STOP,
    adamw_step,
    largest_difference,
    prompts,
    random_qwen,
)
from trainer.config.rollout import VllmConfig
from trainer.policy.architectures import TINY_FOLDER
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.vllm.guard import authorization
from trainer.rollouts.vllm.server import VllmServerEngine

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "VLLM_NO_USAGE_STATS": "1",
}
SEEDS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=32, stop_token_ids=(STOP,))


class Server:
    """`trainer serve` in a process of its own."""

    def __init__(self, model, folder, *overrides):
        port = quiet_port()
        self.url = f"http://127.0.0.1:{port}"
        options = [f"model.name_or_path={model}", "rollout.vllm.kv_cache_mb=64", *overrides]
        command = [
            sys.executable,
            "-m",
            "trainer",
            "serve",
            "tiny_kk",
            *options,
            "--port",
            str(port),
        ]
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self):
        """Until it answers; fails with its log where it ends before."""
        deadline = time.monotonic() + 480  # 20 s on a quiet machine
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{self.url}/health", timeout=10).ok:
                    return
            time.sleep(0.5)
        pytest.fail(f"no answer from the server: {self.log.read_text()[-3000:]}")

    def stop(self):
        """End it and make sure that nothing of it is left."""
        processes = [*psutil.Process(self.process.pid).children(recursive=True)]
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert not alive


def start(model, folder):
    model.save_pretrained(folder / "model")
    server = Server(
        folder / "model", folder, "data.max_prompt_tokens=120", "rollout.max_new_tokens=136"
    )
    try:
        server.wait()
    except BaseException:
        os.killpg(server.process.pid, signal.SIGKILL)  # with its engine
        raise
    return server


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def served(request, tmp_path_factory):
    model = random_qwen(tied=request.param)
    server = start(model, tmp_path_factory.mktemp("served"))
    yield model, server
    server.stop()


def connect(server):
    return VllmServerEngine(
        VllmConfig(server_base_urls=[server.url], server_timeout_s=120), 256, "float32"
    )


def assert_takes_over(engine, model):
    engine.sync_weights(model)
    asked = prompts((20, 30))
    samples = engine.generate(asked, [[1, 2], [3, 4]], PARAMS)
    assert largest_difference(model, asked, samples, 0.7) < AGREEMENT


def test_excluded_ids_are_never_sampled_by_a_server(served):
    model, server = served
    engine = connect(server)
    engine.sync_weights(model)
    half = model.config.vocab_size // 2
    params = replace(PARAMS, excluded_token_ids=tuple(range(half, 2 * half)))
    for group in engine.generate(prompts((12, 20)), [[1, 2], [3, 4]], params):
        for sample in group:
            assert max(sample.token_ids) < half


def test_agrees_with_the_policy_after_each_of_five_optimizer_steps(served):
    model = copy.deepcopy(served[0])
    server = served[1]
    engine = connect(server)
    engine.sync_weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    asked = prompts((40, 70, 9))
    samples = engine.generate(asked, SEEDS, PARAMS)
    assert largest_difference(model, asked, samples, 0.7) < AGREEMENT
    for step in range(5):
        before = copy.deepcopy(model)
        adamw_step(model, optimizer, asked, samples)
        engine.sync_weights(model)
        samples = engine.generate(asked, SEEDS, PARAMS)
        difference = largest_difference(model, asked, samples, 0.7)
        print(f"step {step + 1}: largest difference {difference:.2e} nats")
        assert difference < AGREEMENT
        assert largest_difference(before, asked, samples, 0.7) > 0.05, (
            "the step must move the weights visibly"
        )


def test_it_listens_on_loopback_alone_and_asks_for_its_token(served):
    _, server = served
    sockets = listening(psutil.Process(server.process.pid))
    assert server.url.rpartition(":")[2] in {str(port) for _, _, port in sockets}
    assert open_to_others(sockets) == set()
    for route in (
        "pause",
        "resume",
        "update_weights",
        "collective_rpc",
        "v1/models",
        "inference/v1/generate",
    ):
        assert requests.post(f"{server.url}/{route}", json={}, timeout=10).status_code == 401
        page = {**authorization(), "Origin": "http://evil.example", "Content-Type": "text/plain"}
        assert (
            requests.post(f"{server.url}/{route}", data="{}", headers=page, timeout=10).status_code
            == 403
        )
    assert requests.get(f"{server.url}/v1/models", headers=authorization(), timeout=10).ok


@pytest.mark.parametrize("strategy", ["ddp", "deepspeed"])
def test_two_ranks_share_a_server(served, strategy, tmp_path):
    model, server = served
    overrides = {"parallel.strategy": strategy, "parallel.zero_stage": 3}
    overrides |= {"rollout.vllm.mode": "server", "rollout.vllm.server_base_urls": [server.url]}
    job = {"overrides": overrides, "tied": model.config.tie_word_embeddings}
    for result in run_ranks("tests.trainer.rollouts.vllm.rank_job", 2, job, tmp_path, timeout=280):
        print(f"largest differences {[f'{d:.1e}' for d in result['differences']]} nats")
        assert len(result["differences"]) == 6 and max(result["differences"]) < AGREEMENT
        assert min(result["movements"]) > 0.05, "every step must move the weights visibly"


def test_another_run_on_the_same_server_is_noticed(served):
    model, server = served
    first = connect(server)
    second = connect(server)
    first.sync_weights(model)
    second.sync_weights(model)
    with refused("other-weights", EngineError):
        first.generate(prompts((20,)), [[1]], PARAMS)
    assert second.generate(prompts((20,)), [[1]], PARAMS)


def test_a_trainer_that_died_amid_an_update_leaves_a_server_for_the_next(served):
    model, server = served
    dying = connect(server)
    dying.client.pause_for_update()
    dying.client.start_update()
    dying.client.upload(save(dict(list(model.state_dict().items())[:2])))
    engine = connect(server)
    assert_takes_over(engine, model)


def test_a_refused_weight_does_not_spoil_the_next_update(served):
    model, server = served
    layer = "model.layers.0.self_attn"
    wrong = {
        f"{layer}.q_proj.weight": torch.ones(256, 256),
        f"{layer}.k_proj.weight": torch.ones(7, 7),
    }
    engine = connect(server)
    engine.client.pause_for_update()
    engine.client.start_update()
    with refused("server-refused", EngineError, names=("/update_weights",)):
        engine.client.upload(save(wrong))
    engine.client.abort_update()
    assert_takes_over(engine, model)


@pytest.fixture
def interruptible():
    """Ctrl-C raises KeyboardInterrupt, as in a terminal, also where a background job was told to
    ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupted_sampling_ends_its_requests_on_the_server(served, monkeypatch, interruptible):
    model, server = served
    engine = connect(server)
    engine.sync_weights(model)
    complete = engine.client.complete
    before = sampled_tokens(server)

    async def interrupt_the_first(session, prompt, seed, *rest):
        if seed != 1:
            return await complete(session, prompt, seed, *rest)
        # the self-check is counted late
        while await asyncio.to_thread(sampled_tokens, server) < before + 32:
            await asyncio.sleep(0.3)  # the server answers this beside its other work
        signal.raise_signal(signal.SIGINT)
        return await asyncio.sleep(600)

    monkeypatch.setattr(engine.client, "complete", interrupt_the_first)
    endless = SamplingParams(temperature=1.0, max_new_tokens=200)
    # Forty seconds of sampling: a busy server may answer only after ten.
    seeds = list(range(1, 1025))
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts((20,)), [seeds], endless)
    monkeypatch.undo()
    after = None
    for _ in range(60):  # it may be busy with what it was told to end
        earlier, after = after, sampled_tokens(server)
        if after == earlier:
            break
        time.sleep(2)
    assert after == earlier, "the server goes on sampling"
    assert after - before < 200 * len(seeds) / 2
    assert len(engine.generate(prompts((20,)), [[1]], PARAMS)[0]) == 1


def sampled_tokens(server):
    """All tokens the server has sampled."""
    lines = requests.get(
        f"{server.url}/metrics", timeout=120, headers=authorization()
    ).text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("vllm:generation_tokens_total{")
    )


def test_a_run_trains_with_a_server(tmp_path):
    run = ["rollout.max_new_tokens=48"]
    server = Server(TINY_FOLDER, tmp_path, *run)
    command = ["trainer", "run", "tiny_kk", *run]
    command += [
        f"rollout.vllm.server_base_urls=[{server.url}]",
        "rollout.vllm.mode=server",
        "max_steps=3",
    ]
    command += [
        "rollout.engine=vllm",
        "rollout.prompts_per_step=4",
        "evaluation.sets={dev: {split: dev, size: 6}}",
    ]
    try:
        place = ["--offline", "--name", "served", "--runs-dir", tmp_path]
        done = run_cli(*command, *place, environment=ENVIRONMENT, timeout=240)
    finally:
        server.stop()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    rows = [
        json.loads(line)
        for line in (tmp_path / "served" / "metrics.jsonl").read_text().splitlines()
    ]
    differences = [row["rollout/engine_logprob_diff_max"] for row in rows if "time/sync" in row]
    print(f"largest differences {differences} nats")
    assert len(differences) == 3 and max(differences) < AGREEMENT
