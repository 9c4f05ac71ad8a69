"""Sampling from a real vLLM engine on the CPU; one engine for the whole file."""

import pytest
import torch

from loptune.errors import EngineError
from tests.refusals import refused
from tests.trainer.rollouts.vllm.models import (
    AGREEMENT,
    STOP,
    completion_logits,
    largest_difference,
    prompts,
    random_qwen,
    saved_config,
)
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine, truncation_processors
from trainer.rollouts.vllm.engine import VllmEngine
from trainer.rollouts.vllm.setup import EngineSetup

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One engine and its model for the tests that only sample."""
    model = random_qwen(tied=True)
    engine = VllmEngine(
        model, EngineSetup(saved_config(tmp_path_factory.mktemp("model"), model), 256)
    )
    engine.sync_weights(model)
    yield engine, model
    engine.close()


def test_greedy_completions_are_those_of_the_transformers_engine(shared):
    engine, model = shared
    asked = prompts((40, 70, 9, 17, 33, 5))
    params = SamplingParams(temperature=0, max_new_tokens=40, stop_token_ids=(STOP, 80))
    theirs = TransformersEngine(model, pad_token_id=0).generate(asked, [[0]] * 6, params)
    ours = engine.generate(asked, [[0]] * 6, params)
    assert [[s.token_ids for s in group] for group in ours] == [
        [s.token_ids for s in group] for group in theirs
    ]
    assert [g[0].finish_reason for g in ours] == [g[0].finish_reason for g in theirs]
    assert {g[0].finish_reason for g in ours} == {"stop", "length"}, (
        "the prompts must cover both ends"
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[0].rollout_logprobs == pytest.approx(other[0].rollout_logprobs, abs=AGREEMENT)


@pytest.mark.parametrize(
    "truncation",
    [{"top_p": 0.6}, {"top_k": 4}, {"min_p": 0.2}, {"min_p": 0.02, "top_k": 20, "top_p": 0.8}],
    ids=["top_p", "top_k", "min_p", "all"],
)
def test_truncated_logprobs_are_renormalized_over_the_kept_tokens(shared, truncation):
    engine, model = shared
    asked = prompts((12, 20))
    params = SamplingParams(temperature=0.8, max_new_tokens=24, **truncation)
    for prompt, group in zip(asked, engine.generate(asked, [[1, 2], [3, 4]], params), strict=True):
        for sample in group:
            logprobs = (completion_logits(model, prompt, sample.token_ids) / 0.8).log_softmax(
                dim=-1
            )
            kept = truncation_processors(params)(None, logprobs).log_softmax(dim=-1)
            expected = kept.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            assert sample.rollout_logprobs == pytest.approx(expected.tolist(), abs=AGREEMENT)


def test_excluded_ids_are_never_sampled_others_take_their_mass(shared):
    engine, model = shared
    vocabulary = model.config.vocab_size
    excluded = tuple(
        range(vocabulary // 2, vocabulary)
    )  # half of all ids, as if not in a tokenizer
    asked = prompts((12, 20))
    params = SamplingParams(temperature=0.8, max_new_tokens=24, excluded_token_ids=excluded)
    for prompt, group in zip(asked, engine.generate(asked, [[1, 2], [3, 4]], params), strict=True):
        for sample in group:
            assert max(sample.token_ids) < vocabulary // 2
            logits = completion_logits(model, prompt, sample.token_ids)[:, : vocabulary // 2]
            logprobs = (logits / 0.8).log_softmax(dim=-1)
            expected = logprobs.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            assert sample.rollout_logprobs == pytest.approx(expected.tolist(), abs=AGREEMENT)


def test_a_completion_depends_on_its_prompt_and_seed_alone(shared):
    engine, _ = shared
    asked = prompts((30, 45))
    params = SamplingParams(temperature=1.0, max_new_tokens=24)
    together = engine.generate(asked, [[11, 12, 11], [13]], params)
    [[alone]] = engine.generate([asked[0]], [[12]], params)
    assert together[0][1].token_ids == alone.token_ids
    assert together[0][0].token_ids == together[0][2].token_ids != together[0][1].token_ids
    assert (
        len(
            {
                s.token_ids
                for g in engine.generate([asked[0]], [list(range(50, 58))], params)
                for s in g
            }
        )
        == 8
    )


def test_more_prompt_tokens_than_one_step_takes(shared):
    engine, model = shared
    asked = prompts([150] * 60, seed=3)  # 9000 tokens; a step takes 4096
    params = SamplingParams(temperature=1.0, max_new_tokens=6)
    samples = engine.generate(asked, [[p] for p in range(60)], params)
    assert largest_difference(model, asked, samples, 1.0) < AGREEMENT
    assert engine.generate(asked[57:], [[57], [58], [59]], params) == samples[57:]


def test_a_group_shares_the_prefix_of_its_prompt(shared, monkeypatch):
    engine, _ = shared
    outputs = []
    generate = engine.llm.generate

    def recorded(*args, **kwargs):
        outputs.extend(generate(*args, **kwargs))
        return outputs

    monkeypatch.setattr(engine.llm, "generate", recorded)
    [prompt] = prompts((100,), seed=77)
    engine.generate([prompt], [[1, 2, 3]], SamplingParams(temperature=1.0, max_new_tokens=2))
    assert [output.num_cached_tokens for output in outputs][1:] == [96, 96], (
        "whole blocks of 32 tokens"
    )


def test_a_failing_engine_says_so_and_goes_on(shared, monkeypatch):
    engine, _ = shared
    asked = prompts((8,))
    params = SamplingParams(temperature=1.0, max_new_tokens=4)
    with monkeypatch.context() as patch:
        patch.setattr(
            engine.llm.llm_engine,
            "step",
            lambda: (_ for _ in ()).throw(RuntimeError("kernel broke")),
        )
        with refused("engine-failed", EngineError, names=("kernel broke",)):
            engine.generate(asked, [[1]], params)
    [[sample]] = engine.generate(asked, [[2]], params)
    assert len(sample.token_ids) == 4
