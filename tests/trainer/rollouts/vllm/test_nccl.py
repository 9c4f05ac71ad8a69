"""vLLM's NCCL trainer side against servers that only record; NCCL itself, which needs GPUs, is
replaced.
"""

import pytest
import torch

from loptune.errors import EngineError
from tests.conftest import random_model
from tests.refusals import refused
from tests.trainer.rollouts.vllm.test_client import serving
from trainer.config.rollout import VllmConfig
from trainer.rollouts.vllm import server as vllm_server

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

from vllm.distributed.weight_transfer import nccl_engine  # noqa: E402


@pytest.fixture
def servers():
    with serving() as first, serving() as second:
        first.world_size = 2
        for server in (first, second):
            server.options["weight_transfer_config"]["backend"] = "nccl"
            server.options["model_config"]["dtype"] = "torch.bfloat16"
        yield first, second


@pytest.fixture
def sent(monkeypatch):
    """What rank 0 broadcasts."""
    broadcast = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: object())
    monkeypatch.setattr(
        nccl_engine.NCCLTrainerWeightTransferEngine, "_post_send_sync", lambda _: None
    )
    monkeypatch.setattr(
        nccl_engine,
        "packed_nccl_broadcast_producer",
        lambda iterator, **_: broadcast.extend(iterator),
    )
    monkeypatch.setattr(vllm_server, "check_synced_weights", lambda *_: 0.0)
    return broadcast


def connect(servers):
    urls = [server.url for server in servers]
    settings = VllmConfig(server_base_urls=urls, server_weight_transfer="nccl")
    return vllm_server.VllmServerEngine(settings, 64, "bfloat16")


def bodies(server, route):
    return [body for path, body in server.asked if path == route]


def test_workers_of_all_servers_join_one_group_and_hear_of_every_weight(servers, sent):
    model = random_model()
    connect(servers).sync_weights(model)
    infos = [bodies(server, "/init_weight_transfer_engine")[0]["init_info"] for server in servers]
    # the trainer is 0, the first server has 1 and 2
    assert [info["rank_offset"] for info in infos] == [1, 3]
    assert [info["world_size"] for info in infos] == [4, 4]
    assert infos[0]["master_port"] == infos[1]["master_port"]
    expected = {name: parameter.to(torch.bfloat16) for name, parameter in model.named_parameters()}
    assert [name for name, _ in sent] == list(expected)
    assert all(torch.equal(weight, expected[name]) for name, weight in sent)
    for server in servers:
        [update] = bodies(server, "/update_weights")
        assert update["update_info"] == {
            "names": list(expected),
            "dtype_names": ["bfloat16"] * len(expected),
            "shapes": [list(weight.shape) for weight in expected.values()],
        }
        assert server.version.endswith("-1")


def test_a_failed_broadcast_is_named_and_the_group_formed_anew(servers, sent, monkeypatch):
    def fail(iterator, **_):
        raise RuntimeError("NCCL error: unhandled system error")

    engine = connect(servers)
    with monkeypatch.context() as broken:
        broken.setattr(nccl_engine, "packed_nccl_broadcast_producer", fail)
        with refused("nccl-failed", EngineError, names=("RuntimeError: NCCL error",)) as caught:
            engine.sync_weights(random_model())
    assert "server_weight_transfer=http" in caught.value.hint
    assert {server.version for server in servers} == {"incomplete"}
    engine.sync_weights(random_model())
    engine.sync_weights(random_model())
    assert len(bodies(servers[0], "/init_weight_transfer_engine")) == 2
