"""Who may use a vLLM server: whoever has its token, and no web page.

vLLM's own key covers its public routes alone, not those that pause sampling, replace weights or
call any method of a worker; and it takes a body of any type, so that a page open in a browser on
the same machine could reach them.
"""

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from trainer.errors import StorageError
from trainer.files import write_atomically
from trainer.policy.cache import cache_folder

TOKEN_VARIABLE = "LOPTUNE_SERVER_TOKEN"
_OPEN_ROUTES = ("/health",)  # says that the server is up, for launchers that wait

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def server_token() -> str:
    """Return the token of the user's servers: ``$LOPTUNE_SERVER_TOKEN``, else the one kept in the
    cache, made if need be.

    Raises:
        StorageError: the cache cannot be written or read.
    """
    given = os.environ.get(TOKEN_VARIABLE)
    path = cache_folder() / "server-token"
    try:
        return given or _kept_token(path)
    except OSError as error:
        raise StorageError(
            f"cannot keep the token of vLLM servers: {error.strerror}",
            str(path),
            f"set {TOKEN_VARIABLE}",
        ) from error


def authorization() -> dict[str, str]:
    """Return the header of a request to a server."""
    return {"Authorization": f"Bearer {server_token()}"}


def _kept_token(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            write_atomically(path, secrets.token_hex(32), mode=0o600)
    return path.read_text().strip()


class Guard:
    """ASGI middleware around all routes of a server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = authorization()["Authorization"].encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer that it is refused."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if b"origin" in headers:  # every page's requests to another origin say so
            await _refuse(scope, send, 403, b"not for web pages\n")
        elif scope.get("path") not in _OPEN_ROUTES and not hmac.compare_digest(
            headers.get(b"authorization", b""), self._expected
        ):
            await _refuse(scope, send, 401, b"the token is missing or wrong\n")
        else:
            await self._app(scope, receive, send)


async def _refuse(scope: Message, send: Send, status: int, text: bytes) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
