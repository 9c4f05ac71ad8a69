"""vLLM on the CPU samples what the policy scores, before and after an update."""

import copy

import pytest
import torch

from tests.llm.scoring import chat
from tests.trainer.rollouts.vllm.models import AGREEMENT, adamw_step, largest_difference
from trainer.config.rollout import VllmConfig
from trainer.rollouts.engine import SamplingParams

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.llm]

QUESTIONS = ("What is 7 + 7? Reply with the number only.", "What is the capital of France?")
SEEDS = [[1, 2, 3], [4, 5, 6]]


def test_agrees_with_the_policy_before_and_after_an_update(policy, folder, tokenizer):
    from trainer.rollouts.vllm.engine import VllmEngine
    from trainer.rollouts.vllm.setup import EngineSetup

    prompts = [chat(tokenizer, question) for question in QUESTIONS]
    params = SamplingParams(0.7, max_new_tokens=12, stop_token_ids=(tokenizer.eos_token_id,))
    trained = copy.deepcopy(policy)
    engine = VllmEngine(trained, EngineSetup(str(folder), 128, settings=VllmConfig()))
    try:
        engine.sync_weights(trained)
        samples = engine.generate(prompts, SEEDS, params)
        assert largest_difference(trained, prompts, samples, 0.7) < AGREEMENT
        adamw_step(trained, torch.optim.AdamW(trained.parameters(), lr=1e-4), prompts, samples)
        engine.sync_weights(trained)
        samples = engine.generate(prompts, SEEDS, params)
        assert largest_difference(trained, prompts, samples, 0.7) < AGREEMENT
        assert largest_difference(policy, prompts, samples, 0.7) > 0.05, (
            "the update must move the weights visibly"
        )
    finally:
        engine.close()
