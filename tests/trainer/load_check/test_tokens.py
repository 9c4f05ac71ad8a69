"""Faults of tokenizers are planted; the check must find them and show the text."""

import logging
from dataclasses import replace

import pytest

from tests.refusals import refused
from tests.trainer.load_check.runs import PROBLEMS, TOKENIZER, saved
from tests.trainer.tokenizers_for_tests import CHAT_TEMPLATE, byte_tokenizer
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.load_check import tokens
from trainer.load_check.tokens import check_tokens


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = saved(tmp_path_factory.mktemp("model"))
    return apply_overrides(TrainConfig(), {"model.name_or_path": str(folder)})


def drop_spaces_of_prompts(monkeypatch):
    encode = tokens.encode_prompt

    def without(tokenizer, problem):
        return encode(tokenizer, replace(problem, prompt=problem.prompt.replace(" ", "")))

    monkeypatch.setattr(tokens, "encode_prompt", without)


def double_bos(monkeypatch):
    encode = tokens.encode_prompt
    monkeypatch.setattr(tokens, "encode_prompt", lambda *given: (0, *encode(*given)))


def drop_space_of_completions(monkeypatch):
    decode = tokens.completion_text
    monkeypatch.setattr(
        tokens,
        "completion_text",
        lambda tokenizer, ids, stops, prompt_ids: decode(tokenizer, ids, stops).lstrip(),
    )


FAULTS = [
    (drop_spaces_of_prompts, "the policy reads 'is2+2?"),
    (double_bos, "two BOS tokens"),
    (drop_space_of_completions, "the reward reads '4' where tokenizer.json decodes ' 4'"),
]


@pytest.mark.parametrize(("plant", "shown"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_planted_fault_is_found_and_shown(config, monkeypatch, plant, shown):
    problems = [
        replace(problem, answer=" 4", prompt="<s>" + problem.prompt) for problem in PROBLEMS
    ]
    if plant is not double_bos:
        problems = [replace(problem, answer=" 4") for problem in PROBLEMS[1:]]
    check_tokens(config, TOKENIZER, problems)
    plant(monkeypatch)
    with refused("tokens-differ", names=[shown]):
        check_tokens(config, TOKENIZER, problems)


@pytest.mark.parametrize("is_right", [True, False])
def test_end_of_turn_that_ends_no_completion_is_told(config, caplog, is_right):
    tokenizer = byte_tokenizer(CHAT_TEMPLATE)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+3="}], tokenize=False, add_generation_prompt=True
    )
    end = tokenizer.encode("<")[0]
    settings = {"rollout.stop_token_ids": [end] if is_right else []}
    with caplog.at_level(logging.WARNING):
        check_tokens(
            apply_overrides(config, settings), tokenizer, [replace(PROBLEMS[0], prompt=text)]
        )
    assert (f"rollout.stop_token_ids=[{end}]" in caplog.text) != is_right


@pytest.mark.parametrize("before_end", [" ", "\n", " done"])
def test_text_before_the_eos_token_is_no_end_of_a_turn(config, caplog, before_end):
    template = CHAT_TEMPLATE.replace("</{{ message['role'] }}>", before_end + "</s>")
    tokenizer = byte_tokenizer(template)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+3="}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith(f"<user>1+3={before_end}</s>")
    with caplog.at_level(logging.WARNING):
        check_tokens(config, tokenizer, [replace(PROBLEMS[0], prompt=text)])
    assert "end" not in caplog.text
