"""A hub that does not answer costs seconds, and its cache is used."""

import http.server
import sys
import threading

import pytest
from huggingface_hub import constants

from loptune.errors import MissingError
from tests.ports import quiet_port
from tests.refusals import refused
from trainer import hub
from trainer.cli import main
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.preflight import check_model


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.hub_is_reachable.cache_clear()
    yield
    hub.hub_is_reachable.cache_clear()


class NotFound(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_any_answer_is_one(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub.hub_is_reachable()
        server.shutdown()
    assert not constants.is_offline_mode()


def test_where_nobody_answers_the_cache_is_used_and_nobody_asked_again(monkeypatch, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{quiet_port()}")
    caplog.set_level("INFO")
    assert not hub.hub_is_reachable()
    assert not hub.hub_is_reachable()
    assert constants.is_offline_mode()
    assert sum("not reachable" in record.getMessage() for record in caplog.records) == 1


def test_a_name_server_that_hangs_is_not_waited_for(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(hub, "LIMIT_S", -0.9)
    monkeypatch.setattr(hub, "_answers", lambda url: ended.wait(60))
    assert not hub.hub_is_reachable()
    ended.set()


def test_a_model_that_nothing_holds_is_refused_before_torch(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "models--nobody--cached").mkdir()
    hub.check_available("nobody/cached")  # what it lacks is for the loader to say
    with refused("hub-unreachable", MissingError):
        hub.check_available("nobody/other")
    monkeypatch.setitem(sys.modules, "trainer.commands.evaluation_run", None)  # imports torch
    words = ["--spec", "tiny_kk", "--offline", "--runs-dir", str(tmp_path / "runs")]
    assert main(["evaluate", "nobody/other", *words]) == 3
    with pytest.raises(ImportError):
        main(["evaluate", "nobody/cached", *words])


def test_who_is_offline_by_choice_is_not_told(monkeypatch, caplog):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.hub_is_reachable()
    assert caplog.records == []


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m", "missing.gguf"])
def test_a_model_that_does_not_come_from_the_hub_needs_none(monkeypatch, tmp_path, name):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_model(apply_overrides(TrainConfig(), {"model.name_or_path": name}))
    with refused("hub-unreachable", MissingError):
        check_model(apply_overrides(TrainConfig(), {"model.name_or_path": f"x{name}".upper()}))
