"""Uploads of weights to a vLLM server.

vLLM's route accepts only JSON, so weights would be sent as base64, and vLLM would encode them again
for each of its processes. Instead, the middleware stores the body in a file and passes the file's
path to vLLM.
"""

import json
import tempfile
from typing import BinaryIO

from loptune.temporary import temporary_folder
from trainer.rollouts.vllm.guard import App, Message, Receive, Send, refuse

ROUTE = "/update_weights"
CONTENT_TYPE = "application/octet-stream"
_NO_SPACE = 507  # HTTP: insufficient storage


class UploadMiddleware:
    """ASGI middleware that stores the binary body of a request to vLLM's `update_weights` route in
    a file, and passes the path of the file on.

    The file is in the temporary folder ($TMPDIR) and is deleted after the request.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Replace a binary body with the path of a file that contains it; forward other requests
        unchanged.
        """
        if scope.get("path") != ROUTE or _header(scope, b"content-type") != CONTENT_TYPE:
            await self._app(scope, receive, send)
            return
        with temporary_folder("weights") as folder:
            path = folder / "weights.safetensors"
            try:
                with path.open("wb") as file:
                    complete = await _store(receive, file)
            except OSError as error:
                text = f"cannot store weights in {tempfile.gettempdir()}: {error.strerror}\n"
                await refuse(scope, send, _NO_SPACE, text.encode())
                return
            if complete:
                body = json.dumps({"update_info": {"file": str(path)}}).encode()
                await self._app(_with_json(scope, body), _single(body, receive), send)


def _header(scope: Message, name: bytes) -> str:
    value: bytes = dict(scope["headers"]).get(name, b"")
    return value.decode("latin-1")


async def _store(receive: Receive, file: BinaryIO) -> bool:
    """Write a request's body to a file; return whether it arrived completely."""
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client has disconnected
            return False
        file.write(message.get("body", b""))
        if not message.get("more_body", False):
            return True


def _with_json(scope: Message, body: bytes) -> Message:
    """Return the scope of a request that has this JSON body instead."""
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name not in (b"content-type", b"content-length", b"transfer-encoding")
    ]
    changed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return {**scope, "headers": kept + changed}


def _single(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields this body, and then the messages of the connection."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message
