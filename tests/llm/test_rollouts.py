import pytest
import torch

from tests.llm.scoring import TEMPERATURE, as_batch, chat
from trainer.config.schema import load_config
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.collect import sample_completions, sampling_params
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine

pytestmark = pytest.mark.llm

NEW_TOKENS = 24
QUESTIONS = (
    "What is the capital of France?",
    "What is 7 + 7? Reply with the number only.",
    "Write one sentence about a dog that dreams of the sea, and one about a cat that does not.",
)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [chat(tokenizer, question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def engine(policy, tokenizer):
    return TransformersEngine(policy, pad_token_id=tokenizer.pad_token_id)


def test_greedy_completions_are_those_of_generate_token_for_token(
    engine, plain_model, tokenizer, prompts
):
    params = SamplingParams(
        0.0, max_new_tokens=NEW_TOKENS, stop_token_ids=(tokenizer.eos_token_id,)
    )
    samples = engine.generate(prompts, [[0]] * len(prompts), params)
    for prompt, [sample] in zip(prompts, samples, strict=True):
        whole = plain_model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
        )
        assert list(sample.token_ids) == whole[0, len(prompt) :].tolist()


def test_it_knows_the_capital_of_france(engine, tokenizer, prompts):
    params = SamplingParams(
        0.0, max_new_tokens=NEW_TOKENS, stop_token_ids=(tokenizer.eos_token_id,)
    )
    [[completion]] = sample_completions(engine, tokenizer, prompts[:1], [[0]], params)
    assert completion.text == "The capital of France is Paris."
    assert completion.finish_reason == "stop"


@torch.no_grad()
def test_sampled_log_probabilities_are_the_policys(engine, policy, prompts):
    params = SamplingParams(TEMPERATURE, max_new_tokens=NEW_TOKENS, stop_token_ids=(2,))
    samples = engine.generate(prompts, [[1, 2, 3]] * len(prompts), params)
    rows = [
        (prompt, s.token_ids) for prompt, group in zip(prompts, samples, strict=True) for s in group
    ]
    scores = LogprobModel(policy, TEMPERATURE, chunk_tokens=64)(*as_batch(rows))
    sampled = [s.rollout_logprobs for group in samples for s in group]
    for row, logprobs in enumerate(sampled):
        assert scores.logprobs[row, : len(logprobs)].tolist() == pytest.approx(logprobs, abs=1e-4)


def test_stop_token_is_the_end_of_a_chat_turn(tokenizer):
    assert sampling_params(load_config("smollm2_addition"), tokenizer).stop_token_ids == (2,)
    assert tokenizer.decode([2]) == "<|im_end|>"
