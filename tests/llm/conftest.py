"""SmolLM2-135M-Instruct for the tests marked ``llm``: fetched and converted on first use, loaded
once.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from trainer.config.model import ModelConfig
from trainer.policy.load import load_policy, load_tokenizer, model_source

MODEL = ModelConfig(name_or_path="smollm2-135m")


@pytest.fixture(scope="session")
def folder() -> Path:
    return Path(model_source(MODEL).name)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(MODEL)


@pytest.fixture(scope="session")
def policy() -> PreTrainedModel:
    """As it is trained. Tests leave its weights as they are."""
    return load_policy(MODEL, torch.device("cpu"))


@pytest.fixture(scope="session")
def plain_model(folder: Path) -> PreTrainedModel:
    """As transformers alone loads and computes it."""
    return AutoModelForCausalLM.from_pretrained(folder).eval()
