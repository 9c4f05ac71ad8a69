"""vLLM on a GPU: start, synchronize, sleep, end awake and asleep, start again, with and without
CUDA graphs.

On the CPU, where vLLM cannot sleep, the same in the environment of `make test-vllm`.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
import torch

from tests.paths import ROOT
from tests.ports import quiet_port
from tests.trainer.rollouts.vllm.models import STOP, prompts, random_qwen, saved_config
from trainer.config.rollout import VllmConfig
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.vllm.engine import VllmEngine
from trainer.rollouts.vllm.setup import EngineSetup

HAS_VLLM = importlib.util.find_spec("vllm") is not None
pytestmark = [
    pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed"),
    pytest.mark.timeout(600),
]
SEEDS = [[1, 2, 3, 4], [5, 6, 7, 8]]
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=32, stop_token_ids=(STOP,))
BOUND = 0.05  # nats on average, in bfloat16


def each(*values):
    """On a GPU with each of the values, on the CPU with the last."""
    on_gpu = [
        pytest.param("cuda", value, marks=pytest.mark.gpu, id=f"cuda-{value}") for value in values
    ]
    return [
        pytest.param("cpu", values[-1], marks=pytest.mark.vllm, id=f"cpu-{values[-1]}"),
        *on_gpu,
    ]


@pytest.fixture
def model(request):
    return random_qwen(tied=True).to(request.param)


@pytest.fixture
def start(tmp_path):
    """Starts engines, and ends those that a test leaves."""
    engines = []

    def started(model, **settings):
        config = VllmConfig(gpu_memory_utilization=0.3, **settings)
        setup = EngineSetup(saved_config(tmp_path, model), 512, "bfloat16", config, requests=16)
        engines.append(VllmEngine(model, setup))
        engines[-1].sync_weights(model)
        return engines[-1]

    yield started
    for engine in engines:
        engine.close()


def difference(engine, model):
    """Mean |engine's - policy's log-probability| of sampled tokens [nats]."""
    asked = prompts((40, 9))
    device = next(model.parameters()).device
    scorer = LogprobModel(model, PARAMS.temperature, 512, torch.bfloat16)
    differences = []
    for prompt, group in zip(asked, engine.generate(asked, SEEDS, PARAMS), strict=True):
        for sample in group:
            ids = torch.tensor([[*prompt, *sample.token_ids]], device=device)
            mask = torch.ones(1, len(sample.token_ids), device=device)
            with torch.no_grad():
                again = (
                    scorer(ids, torch.tensor([len(prompt)], device=device), mask).logprobs[0].cpu()
                )
            differences.append((again - torch.tensor(sample.rollout_logprobs)).abs())
    return float(torch.cat(differences).mean())


def move(model):
    """An update that a stale engine would be seen by."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))


def buffers_of(worker):
    return {
        name: buffer.detach().cpu().clone()
        for name, buffer in worker.model_runner.model.named_buffers()
    }


@pytest.mark.parametrize(("model", "eager"), each(False, True), indirect=["model"])
def test_an_engine_samples_what_the_policy_is_after_every_update(model, start, eager):
    engine = start(model, enforce_eager=eager)
    assert difference(engine, model) < BOUND
    for _ in range(2):
        move(model)
        assert difference(engine, model) > 2 * BOUND, "the update must be visible"
        engine.sync_weights(model)
        assert difference(engine, model) < BOUND


@pytest.mark.parametrize(("model", "level"), each(2), indirect=["model"])
def test_an_engine_that_has_slept_is_as_before(model, start, level):
    """Level 2 throws weights away, which the next synchronization brings; buffers it must leave
    alone.
    """
    engine = start(model, sleep_level=level)
    [before] = engine.llm.collective_rpc(buffers_of)
    assert before, "a rotary embedding has a buffer"
    for _ in range(2):
        awake = torch.cuda.mem_get_info()[0] if model.device.type == "cuda" else 0
        engine.sleep()
        if model.device.type == "cuda":
            freed = torch.cuda.mem_get_info()[0] - awake
            print(f"level {level} hands back {freed / 1e9:.1f} GB")
            assert freed > 0.2 * torch.cuda.get_device_properties(0).total_memory
        move(model)
        engine.sync_weights(model)
        engine.wake()
        [after] = engine.llm.collective_rpc(buffers_of)
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], buffer) for name, buffer in before.items())
        assert difference(engine, model) < BOUND


@pytest.mark.parametrize(("model", "level"), each(2), indirect=["model"])
def test_the_sampler_draws_the_same_tokens_after_sleep(model, start, level):
    """Level 2 throws away what vLLM has allocated with the weights, and on GPUs some runners keep
    there what they know of a request's seed and of its excluded ids.
    """
    engine = start(model, sleep_level=level)
    half = model.config.vocab_size // 2
    params = replace(PARAMS, excluded_token_ids=tuple(range(half, 2 * half)))
    before = engine.generate(prompts((40, 9)), SEEDS, params)
    for _ in range(2):
        engine.sleep()
        engine.sync_weights(model)
        engine.wake()
        after = engine.generate(prompts((40, 9)), SEEDS, params)
        for earlier, later in zip(before, after, strict=True):
            assert [row.token_ids for row in later] == [row.token_ids for row in earlier]
            assert all(max(row.token_ids) < half for row in later)


@pytest.mark.parametrize(("model", "asleep"), each(False, True), indirect=["model"])
def test_a_second_engine_starts_after_the_first_has_ended(model, start, asleep):
    first = start(model)
    if asleep:
        first.sleep()
    first.close()
    assert first.llm is None
    second = start(model, enforce_eager=True)  # another setup: nothing of the first is taken over
    assert difference(second, model) < BOUND
    if model.device.type == "cuda":  # the allocator still works
        torch.empty(2**20, device="cuda").fill_(1.0)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_server_on_another_gpu_takes_weights_by_nccl(tmp_path):
    from trainer.rollouts.vllm.server import VllmServerEngine

    model = random_qwen(tied=True).to("cuda:0")
    model.save_pretrained(tmp_path / "model")
    port = quiet_port()
    options = ["model.dtype=bfloat16", "data.max_prompt_tokens=120", "rollout.max_new_tokens=136"]
    command = [
        sys.executable,
        "-m",
        "trainer",
        "serve",
        "tiny_kk",
        f"model.name_or_path={tmp_path / 'model'}",
    ]
    with (tmp_path / "server.log").open("w") as log:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": str(ROOT)}
        server = subprocess.Popen(
            [*command, *options, "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, tmp_path / "server.log")
        settings = VllmConfig(
            server_base_urls=[f"http://127.0.0.1:{port}"], server_weight_transfer="nccl"
        )
        engine = VllmServerEngine(settings, 256, "bfloat16")
        for _ in range(2):
            engine.sync_weights(model)
            assert difference(engine, model) < BOUND
            move(model)
        engine.close()
    finally:
        server.terminate()
        server.wait(60)


def wait_for(url, server, log):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(1)
    pytest.fail(log.read_text()[-3000:])
