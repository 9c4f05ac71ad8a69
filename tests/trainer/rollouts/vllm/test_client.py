"""What is asked of a vLLM server and what its answers mean; needs no vLLM."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
import torch
from safetensors.torch import load

from loptune.errors import ConfigError, EngineError, MissingError
from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.refusals import refused
from trainer.config.rollout import VllmConfig
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.vllm import http_transfer
from trainer.rollouts.vllm import server as vllm_server
from trainer.rollouts.vllm.client import VllmClient
from trainer.rollouts.vllm.guard import authorization
from trainer.rollouts.vllm.server import VllmServerEngine
from trainer.types import Completion

TIMEOUT_S = 5.0  # of the ranks' collectives
CHUNK_S = 1.0  # a slow server's time for one chunk


class FakeServer(ThreadingHTTPServer):
    """Answers as vLLM does: canned bodies or statuses by route, and a record of what was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = []
        self.status = {}  # statuses of a route's next answers
        self.version = "default"
        self.world_size = 1
        self.options = {
            "model_config": {
                "max_model_len": 64,
                "dtype": "torch.float32",
                "logprobs_mode": "processed_logprobs",
            },
            "weight_transfer_config": {"backend": "loptune_http"},
        }
        self.finish_reason = "stop"
        self.load = lambda: None  # what the server does with some weights

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, route, body):
        if route == "/server_info":
            return {"vllm_config": self.options}
        if route == "/get_world_size":
            return {"world_size": self.world_size}
        if route == "/update_weights":
            self.load()
        if route == "/finish_weight_update":
            self.version = body["weight_version"]
        if route == "/update_weight_version":
            self.version = body["new_version"]
        if route == "/inference/v1/generate":
            content = [{"token_id": 7, "logprob": -0.5}, {"token_id": 9, "logprob": -2.0}]
            prompt = [
                None,
                *({str(token): {"logprob": -float(token)}} for token in body["token_ids"][1:]),
            ]
            choice = {
                "token_ids": [7, 9],
                "logprobs": {"content": content},
                "finish_reason": self.finish_reason,
                "weight_versions": [{"version": self.version, "start": 0, "end": 2}],
            }
            return {"choices": [choice], "prompt_logprobs": prompt}
        return {}


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def _serve(self):
        route = self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
        if body and self.headers["Content-Type"] != "application/octet-stream":
            body = json.loads(body)
        assert (
            route == "/health" or self.headers["Authorization"] == authorization()["Authorization"]
        )
        self.server.asked.append((self.path, body))
        statuses = self.server.status.get(route)
        status = statuses.pop(0) if statuses else 200
        answer = json.dumps(
            self.server.answer(route, body) if status == 200 else {"error": "no such thing"}
        )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    do_GET = do_POST = _serve

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    """A fake server that answers while the context lasts."""
    fake = FakeServer()
    thread = threading.Thread(target=fake.serve_forever, daemon=True)
    thread.start()
    yield fake
    fake.shutdown()
    fake.server_close()


@pytest.fixture
def server():
    with serving() as fake:
        yield fake


@pytest.fixture
def engine(server, monkeypatch):
    # the fake has no model
    monkeypatch.setattr(vllm_server, "check_synced_weights", lambda *_: 0.0)
    return VllmServerEngine(VllmConfig(server_base_urls=[server.url]), 64, "float32")


PARAMS = SamplingParams(
    temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, max_new_tokens=4, stop_token_ids=(9,)
)


def routes(server):
    return [path for path, _ in server.asked]


def test_an_update_pauses_the_server_and_carries_every_weight_once(server, engine, monkeypatch):
    monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 20_000)
    model = random_model()
    server.asked.clear()
    engine.sync_weights(model)
    assert routes(server)[:3] == [
        "/pause?mode=abort",
        "/update_weight_version",
        "/start_weight_update",
    ]
    assert routes(server)[-2:] == ["/finish_weight_update", "/resume"]
    updates = [body for path, body in server.asked if path == "/update_weights"]
    assert len(updates) > 1
    arrived = {}
    for update in updates:
        weights = load(update)
        assert not weights.keys() & arrived.keys()
        arrived |= weights
    expected = dict(model.named_parameters())
    assert arrived.keys() == expected.keys()
    assert all(torch.equal(arrived[name], expected[name]) for name in expected)


def test_weights_travel_in_the_dtype_the_servers_compute_in(server, monkeypatch):
    monkeypatch.setattr(vllm_server, "check_synced_weights", lambda *_: 0.0)
    server.options["model_config"]["dtype"] = "torch.bfloat16"
    VllmServerEngine(VllmConfig(server_base_urls=[server.url]), 64, "bfloat16").sync_weights(
        random_model()
    )
    [update] = [body for path, body in server.asked if path == "/update_weights"]
    assert {weight.dtype for weight in load(update).values()} == {torch.bfloat16}


def test_all_servers_receive_several_requests_at_once(monkeypatch):
    monkeypatch.setattr(vllm_server, "check_synced_weights", lambda *_: 0.0)
    monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 1)
    with serving() as first, serving() as second:
        servers = (first, second)
        # the first requests are answered when all of them are there
        first_requests = threading.Barrier(len(servers) * http_transfer.REQUESTS_IN_FLIGHT)
        later = threading.Event()

        def load():
            if not later.is_set():
                first_requests.wait(timeout=60)
                later.set()

        for server in servers:
            server.load = load
        settings = VllmConfig(server_base_urls=[server.url for server in servers])
        VllmServerEngine(settings, 64, "float32").sync_weights(random_model())
    assert later.is_set()


def test_a_server_that_fails_leaves_no_server_with_half_of_the_weights(monkeypatch):
    monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 20_000)
    with serving() as good, serving() as bad:
        bad.status["/update_weights"] = [500] * 100
        settings = VllmConfig(server_base_urls=[good.url, bad.url])
        engine = VllmServerEngine(settings, 64, "float32")
        with refused("server-refused", EngineError, names=(bad.url,)):
            engine.sync_weights(random_model())
        for server in (good, bad):
            assert server.version == "incomplete"
            assert routes(server)[-2:] == ["/finish_weight_update", "/resume"]


def test_a_slow_server_delays_the_other_ranks_but_no_chunk_their_timeout(tmp_path):
    # The whole transfer takes longer than the ranks' time-out, each of its chunks much less.
    with serving() as server:
        one_at_a_time = threading.Lock()

        def load():
            with one_at_a_time:
                time.sleep(CHUNK_S)

        server.load = load
        job = {"url": server.url, "timeout_s": TIMEOUT_S, "chunk_bytes": 6_000}
        results = run_ranks("tests.trainer.rollouts.vllm.slow_server_job", 2, job, tmp_path)
        chunks = routes(server).count("/update_weights")
    assert chunks * CHUNK_S > TIMEOUT_S
    assert results == ["synced", "synced"]


def test_an_update_that_a_dead_trainer_left_open_is_ended_first(server, engine):
    server.asked.clear()
    server.status["/start_weight_update"] = [500]
    engine.sync_weights(random_model())
    assert routes(server)[2:5] == [
        "/start_weight_update",
        "/finish_weight_update",
        "/start_weight_update",
    ]
    assert server.asked[3][1] == {"weight_version": "incomplete"}
    assert server.version.endswith("-1")


def test_requests_and_answers(server, engine):
    engine.sync_weights(random_model())
    server.asked.clear()
    samples = engine.generate([[1, 2], [3]], [[11, 12], [13]], PARAMS)
    assert samples == [
        [Completion((7, 9), (-0.5, -2.0), "stop")] * 2,
        [Completion((7, 9), (-0.5, -2.0), "stop")],
    ]
    asked = sorted(
        (body for _, body in server.asked), key=lambda body: body["sampling_params"]["seed"]
    )
    assert [body["token_ids"] for body in asked] == [[1, 2], [1, 2], [3]]
    assert asked[0]["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "max_tokens": 4,
        "stop_token_ids": [9],
        "ignore_eos": True,
        "logit_bias": None,
        "seed": 11,
        "logprobs": 0,
        "detokenize": False,
    }


def test_prompt_log_probabilities_are_those_of_the_prompts_own_tokens(server):
    assert VllmClient(server.url).prompt_logprobs([3, 4, 6]).tolist() == [-4.0, -6.0]


def test_a_server_that_cannot_be_connected_to_is_reported_with_the_reason(monkeypatch):
    def refuse(*_, **__):
        raise requests.exceptions.SSLError("certificate has expired")

    monkeypatch.setattr(requests, "get", refuse)
    with refused("no-server", names=("SSLError: certificate has expired", "trainer serve")):
        VllmClient("https://host:8000").wait(0.0)


@pytest.mark.parametrize(
    ("status", "options", "settings", "error", "words"),
    [
        (
            {"/health": [503] * 5},
            {},
            {"server_timeout_s": 0.1},
            (MissingError, "no-server"),
            "/health: 503",
        ),
        ({"/weight_info": [404]}, {}, {}, (EngineError, "no-weight-updates"), "trainer serve"),
        ({}, {"logprobs_mode": "raw"}, {}, (EngineError, "server-settings"), "--logprobs-mode raw"),
        ({}, {"dtype": "torch.bfloat16"}, {}, (EngineError, "server-settings"), "--dtype bfloat16"),
        ({}, {"max_model_len": 63}, {}, (ConfigError, "server-context"), "63"),
        (
            {},
            {"backend": "nccl"},
            {},
            (EngineError, "server-settings"),
            "--weight-transfer-config nccl",
        ),
        (
            {},
            {"backend": "nccl"},
            {"server_weight_transfer": "nccl"},
            (ConfigError, "nccl-without-gpus"),
            "http",
        ),
    ],
)
def test_a_server_that_does_not_fit_is_refused(
    server, monkeypatch, status, options, settings, error, words
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    server.status |= status
    server.options["weight_transfer_config" if "backend" in options else "model_config"] |= options
    kind, code = error
    with refused(code, kind) as caught:
        VllmServerEngine(VllmConfig(server_base_urls=[server.url], **settings), 64, "float32")
    assert words in str(caught.value)


def test_after_a_failed_update_the_server_goes_on_with_weights_of_nobody(server, engine):
    engine.sync_weights(random_model())
    server.status["/update_weights"] = [500]
    server.status["/finish_weight_update"] = [500]  # the server ended the update itself
    with refused("server-refused", EngineError) as caught:
        engine.sync_weights(random_model())
    assert "trainer serve" in caught.value.hint
    assert routes(server)[-2:] == ["/finish_weight_update", "/resume"]
    assert server.version == "incomplete"
    with refused("other-weights", EngineError) as caught:
        engine.generate([[1, 2]], [[1]], PARAMS)
    assert "(incomplete)" in caught.value.what


def test_a_failed_request_ends_the_others(server, engine):
    engine.sync_weights(random_model())
    server.status["/inference/v1/generate"] = [500]
    server.asked.clear()
    with refused("server-refused", EngineError):
        engine.generate([[1, 2]], [[1, 2]], PARAMS)
    [aborted] = [
        body["request_ids"] for path, body in server.asked if path == "/inference/v1/abort_requests"
    ]
    asked = {body["request_id"] for path, body in server.asked if path == "/inference/v1/generate"}
    assert len(aborted) == 2 and {f"generate-tokens-{name}" for name in asked} <= set(aborted)


def test_a_request_that_another_runs_update_ends_is_refused(server, engine):
    engine.sync_weights(random_model())
    server.finish_reason = "abort"
    with refused("other-weights", EngineError):
        engine.generate([[1, 2]], [[1]], PARAMS)


def test_a_server_that_is_gone(server, engine):
    engine.sync_weights(random_model())
    server.shutdown()
    server.server_close()
    with refused("server-lost", EngineError):
        engine.generate([[1, 2]], [[1]], PARAMS)


def test_another_token_than_the_servers_is_named(server, engine):
    server.status["/pause"] = [401]
    with refused("server-token", EngineError) as caught:
        engine.sync_weights(random_model())
    assert "LOPTUNE_SERVER_TOKEN" in caught.value.where
