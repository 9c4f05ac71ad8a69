import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.warm import make_folder, remove_folder, shared_folder

if TYPE_CHECKING:  # they take seconds to import, and many tests need neither
    from playwright.sync_api import Browser
    from transformers import PreTrainedModel

os.environ["OMP_NUM_THREADS"] = "1"
# Ray's workers would be nicer than the other tests by 15, and hardly run beside them.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
# Hundreds of processes that tests start would compile the packages again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# They begin first: a file runs in one process, which the others would wait for at the end.
LONGEST = (
    "tests/test_tutorials.py",
    "tests/faults/test_lost_nodes.py",
    "tests/faults/test_command.py",
    "tests/end_to_end/test_own_trainer_as_command.py",
    "tests/sweep/commands/test_gate.py",
    "tests/first_contact/test_parts.py",
    "tests/trainer/parallel/test_interface.py",
    "tests/trainer/parallel/test_ranks.py",
    "tests/trainer/test_api.py",
    "tests/trainer/test_loop.py",
    "tests/trainer/rollouts/vllm/test_server.py",
)
WITHOUT_RUNS = ("options", "metrics", "presets", "init", "schema")  # commands


def pytest_configure(config):
    # Only tests for GPUs may see one: a CPU test that found one would test something else, beside
    # other programs.
    if "gpu" not in (config.getoption("markexpr") or "").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    make_folder()


def pytest_unconfigure():
    remove_folder()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture
def typed(tmp_path, capsys):
    """Carries out a command line in this process, with its runs in ``tmp_path``, and returns what
    it prints: to standard error if it is to end with another exit code than 0.
    """

    def carry_out(line: str, *words: object, code: int = 0) -> str:
        program, *arguments = line.split()
        main = import_module(f"{program}.cli").main
        arguments += map(str, words)
        if "--runs-dir" not in arguments and arguments[0] not in WITHOUT_RUNS:
            arguments += ["--runs-dir", str(tmp_path)]
        ended = main(arguments)
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.err if code else printed.out

    return carry_out


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """The system's Chromium, or the one that playwright brings."""
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        try:
            playwright = stack.enter_context(sync_playwright())
            chromium = shutil.which("chromium")
            started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except Exception as error:
            missing = (
                "tests in a browser need the packages chromium and libatomic1: type `make browser`"
            )
            if os.environ.keys() & {"CI", "LOPTUNE_NEED_BROWSER"}:
                raise RuntimeError(missing) from error
            pytest.skip(missing)
        yield started
        started.close()


def random_model(
    family: str = "qwen2",
    tied: bool = True,
    vocab_size: int = 61,
    seed: int = 0,
    max_position_embeddings: int = 512,
    layers: int = 2,
) -> "PreTrainedModel":
    """A small random model in float32 with weights large enough for peaked distributions."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": tied,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shape)).eval()
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()


@pytest.fixture(scope="session")
def random_policy(tmp_path_factory) -> Path:
    """Folder of a random model without a tokenizer."""
    folder = tmp_path_factory.mktemp("random")
    random_model().save_pretrained(folder)
    return folder


@pytest.fixture(
    params=[("qwen2", True), ("qwen2", False), ("llama", False)],
    ids=["qwen2-tied", "qwen2", "llama"],
)
def causal_lm(request) -> "PreTrainedModel":
    family, tied = request.param
    return random_model(family, tied)


@pytest.fixture(scope="session")
def tiny_policy() -> Path:
    """Folder of the tiny model after a very short warm start: it can write answers, mostly wrong
    ones. All processes of xdist read the same.
    """
    from research.tiny_policy import TinyRecipe, write_policy

    with shared_folder() as folder:
        if not (folder / "tiny").exists():
            write_policy(folder / "new", TinyRecipe(steps=60, puzzles=200)).rename(folder / "tiny")
    return folder / "tiny"
