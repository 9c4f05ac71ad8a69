import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loptune.temporary import remove_leftovers
from trainer.rollouts.vllm.upload import CONTENT_TYPE, ROUTE, UploadMiddleware


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ask(*messages, path=ROUTE, content_type=CONTENT_TYPE):
    """Send a request's messages; what the server behind the middleware got, and what was sent."""
    pending = list(messages)
    behind = []
    sent = []

    async def receive():
        return pending.pop(0)

    async def record(scope, receive, send):
        message = await receive()
        body = message["body"]
        headers = dict(scope["headers"])
        behind.append((headers, body, message))
        if headers[b"content-type"] == b"application/json":
            file = json.loads(body)["update_info"]["file"]
            behind.append(Path(file).read_bytes())
        behind.append(await receive())

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", content_type.encode()), (b"content-length", b"6")]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(UploadMiddleware(record)(scope, receive, send))
    return behind, sent


def part(body, more):
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


def test_a_binary_body_arrives_as_a_file_that_is_deleted_afterwards(folder):
    behind, sent = ask(part(b"abc", True), part(b"def", False), GONE)
    [(headers, body, message), content, after] = behind
    assert content == b"abcdef"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert message["more_body"] is False
    assert after == GONE  # the server still notices that a client is gone
    assert not sent
    assert not os.listdir(folder)


@pytest.mark.parametrize(
    "request_of", [{"path": "/inference/v1/generate"}, {"content_type": "text/plain"}]
)
def test_other_requests_pass_unchanged(folder, request_of):
    behind, _ = ask(part(b"abcdef", False), GONE, **request_of)
    assert behind[0][1] == b"abcdef"
    assert behind[0][0][b"content-length"] == b"6"


def test_an_upload_that_breaks_off_is_not_loaded(folder):
    behind, sent = ask(part(b"abc", True), GONE)
    assert not behind and not sent
    assert not os.listdir(folder)


def test_a_full_disk_is_answered(folder, monkeypatch):
    async def full(receive, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.rollouts.vllm.upload._store", full)
    behind, sent = ask(part(b"abcdef", False))
    assert not behind
    assert sent[0]["status"] == 507
    text = f"cannot store weights in {folder}: No space left on device\n"
    assert sent[1]["body"] == text.encode()


KILLED = """
import asyncio, os, signal
from trainer.rollouts.vllm.upload import CONTENT_TYPE, ROUTE, UploadMiddleware

async def receive():
    return {"type": "http.request", "body": b"weights", "more_body": False}

async def load(scope, receive, send):
    os.kill(os.getpid(), signal.SIGKILL)

headers = [(b"content-type", CONTENT_TYPE.encode())]
scope = {"type": "http", "path": ROUTE, "headers": headers}
asyncio.run(UploadMiddleware(load)(scope, receive, None))
"""


def test_weights_that_a_killed_server_left_are_removed_as_all_leftovers_are(folder):
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(folder)})
    [left] = folder.iterdir()
    [file] = left.iterdir()
    assert file.read_bytes() == b"weights"
    os.utime(left, (time.time() - 4000,) * 2)
    assert left in remove_leftovers()
    assert not left.exists()
