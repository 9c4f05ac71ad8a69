"""Authentication of requests to a vLLM server: token required, web pages rejected.

vLLM's own API key does not protect the routes that pause sampling, replace weights or call worker
methods. vLLM also accepts any content type, so a web page in a browser on the same machine could
call them (CSRF).
"""

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from loptune.errors import StorageError
from loptune.files import write_atomically
from trainer.policy.cache import cache_folder

TOKEN_VARIABLE = "LOPTUNE_SERVER_TOKEN"
_PUBLIC_ROUTES = ("/health",)  # health check, for launchers that wait for the server

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def server_token() -> str:
    """Return ``$LOPTUNE_SERVER_TOKEN``, or else the token in the cache folder; create it if needed.

    Raises:
        StorageError: there is no cache folder, or it cannot be written or read.
    """
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        return given
    path = cache_folder() / "server-token"
    try:
        return _stored_token(path)
    except OSError as error:
        raise StorageError(
            f"cannot store the vLLM server token: {error.strerror}",
            str(path),
            f"set {TOKEN_VARIABLE}",
            code="token-not-stored",
        ) from error


def authorization() -> dict[str, str]:
    """Return the Authorization header for the servers."""
    return {"Authorization": f"Bearer {server_token()}"}


def _stored_token(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            write_atomically(path, secrets.token_hex(32), mode=0o600)
    return path.read_text(encoding="utf-8").strip()


class TokenMiddleware:
    """ASGI middleware that authenticates every request except health checks."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = authorization()["Authorization"].encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward an authorized request, or reject it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if b"origin" in headers:  # browsers set Origin on cross-origin requests
            await refuse(scope, send, 403, b"not for web pages\n")
        elif scope.get("path") not in _PUBLIC_ROUTES and not hmac.compare_digest(
            headers.get(b"authorization", b""), self._expected
        ):
            await refuse(scope, send, 401, b"the token is missing or wrong\n")
        else:
            await self._app(scope, receive, send)


async def refuse(scope: Message, send: Send, status: int, text: bytes) -> None:
    """Answer a request with an error, or close a websocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
