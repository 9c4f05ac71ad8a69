import asyncio
import stat

import pytest

from loptune.errors import StorageError
from tests.refusals import refused
from trainer.rollouts.vllm.guard import TOKEN_VARIABLE, TokenMiddleware, server_token


def ask(path="/update_weights", kind="http", **headers):
    """The status of a guarded server's answer; "passed" from behind the guard."""
    sent = []

    async def app(scope, receive, send):
        sent.append({"type": "behind", "status": "passed"})

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "path": path,
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }
    asyncio.run(TokenMiddleware(app)(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize(
    "path",
    ["/pause", "/update_weights", "/collective_rpc", "/v1/models", "/server_info", "/metrics"],
)
def test_every_route_asks_for_the_token(monkeypatch, path):
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    assert ask(path) == 401
    assert ask(path, authorization="Bearer wrong") == 401
    assert ask(path, authorization="right") == 401
    assert ask(path, authorization="Bearer right") == "passed"


def test_web_pages_are_refused_even_with_the_token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    assert ask(authorization="Bearer right", origin="http://evil.example") == 403
    assert ask("/health", origin="null") == 403
    assert ask(kind="websocket", origin="http://evil.example") == "websocket.close"
    assert ask(kind="websocket") == "websocket.close"


def test_that_the_server_is_up_may_be_seen_and_its_start_goes_through(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    assert ask("/health") == "passed"
    assert ask(kind="lifespan") == "passed"


def test_a_token_is_made_once_and_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path / "cache"))
    token = server_token()
    assert len(token) == 64
    assert server_token() == token
    assert stat.S_IMODE((tmp_path / "cache" / "server-token").stat().st_mode) == 0o600
    monkeypatch.setenv(TOKEN_VARIABLE, "given")
    assert server_token() == "given"


def test_a_token_that_cannot_be_kept_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path / "file"))
    with refused("token-not-stored", StorageError):
        server_token()
