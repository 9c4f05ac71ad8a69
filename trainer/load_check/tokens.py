"""Compare the tokens of the user's prompts and reference answers with ``tokenizer.json``, as read
by the tokenizers library.
"""

import logging
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from loptune.errors import ConfigError, shortened, warning_text
from trainer.config.schema import TrainConfig
from trainer.policy.load import tokenizer_source
from trainer.policy.published_tokenizer import published_tokenizer
from trainer.problems.chat_template import ChatTemplate
from trainer.problems.load import encode_prompt
from trainer.rollouts.collect import stop_tokens
from trainer.rollouts.stop_strings import completion_text
from trainer.types import Problem

_logger = logging.getLogger(__name__)

_PROBLEMS = 8

Decode = Callable[[Sequence[int], Sequence[int]], str]  # (completion, prompt) -> text


def check_tokens(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]
) -> None:
    """Compare the tokens of some prompts and the decoded reference answers with the published
    tokenizer, and warn if the token that ends a turn in the chat template is not a stop token. A
    model without ``tokenizer.json`` is not checked.

    Raises:
        ConfigError: they differ; the error shows the text.
    """
    stops = stop_tokens(config, tokenizer)
    published = published_tokenizer(*tokenizer_source(config.model))
    if published is None:
        return
    for problem in problems[:_PROBLEMS]:
        prompt = encode_prompt(tokenizer, problem)
        _check_prompt(published, tokenizer, problem, prompt)
        _check_answer(
            published,
            str(problem.answer),
            prompt,
            lambda ids, prompt: completion_text(tokenizer, ids, stops, prompt_ids=prompt),
        )
    _warn_of_end(published, tokenizer, problems[0].prompt, stops)


def _check_prompt(
    published: Tokenizer,
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    prompt: Sequence[int],
) -> None:
    text = problem.prompt + problem.prefill
    expected = published.encode(text, add_special_tokens=False).ids
    bos = tokenizer.bos_token_id
    actual = list(prompt)
    if actual != expected and actual[:1] == [bos]:
        actual = actual[1:]
    if actual != expected:
        place = next(
            (i for i, (a, b) in enumerate(zip(actual, expected, strict=False)) if a != b),
            min(len(actual), len(expected)),
        )
        read = published.decode(actual[place : place + 8], skip_special_tokens=False)
        right = published.decode(expected[place : place + 8], skip_special_tokens=False)
        raise _differs(
            f"the policy reads {read!r} in a prompt where tokenizer.json has {right!r}",
            shortened(repr(text), 60),
        )
    if bos is not None and list(prompt[:2]) == [bos, bos]:
        raise _differs("a prompt starts with two BOS tokens", shortened(repr(text), 60))


def _check_answer(published: Tokenizer, answer: str, prompt: Sequence[int], decode: Decode) -> None:
    """Check a reference answer as a completion: the reward must receive the text that
    ``tokenizer.json`` decodes after the prompt.

    Raises:
        ConfigError: the reward would receive different text.
    """
    ids = published.encode(answer, add_special_tokens=False).ids
    before = published.decode(list(prompt), skip_special_tokens=False)
    both = published.decode([*prompt, *ids], skip_special_tokens=False)
    if not ids or not both.startswith(before):
        return
    actual = decode(ids, prompt)
    expected = both.removeprefix(before)
    if actual != expected:
        raise _differs(
            f"the reward reads {shortened(repr(actual), 60)} where tokenizer.json decodes "
            f"{shortened(repr(expected), 60)}",
            f"reference answer {shortened(repr(answer), 60)}",
        )


def _warn_of_end(
    published: Tokenizer, tokenizer: PreTrainedTokenizerBase, prompt: str, stops: Sequence[int]
) -> None:
    """Warn if prompts use the chat template, but its end-of-turn token is not a stop token."""
    if not tokenizer.chat_template:
        return
    template = ChatTemplate(tokenizer, {})
    if not template.has_rendered(prompt):
        return
    end = _end_of_turn(published, tokenizer, template.ending)
    if end is None or end in stops:
        return
    token = published.decode([end], skip_special_tokens=False)
    text = warning_text(
        f"the chat template ends the assistant's turn with {token!r}, which is not a stop token",
        "eos_token_id of generation_config.json, rollout.stop_token_ids",
        f"rollout.stop_token_ids=[{end}], unless this model was not trained on the template",
    )
    _logger.warning("%s", text)


def _end_of_turn(
    published: Tokenizer, tokenizer: PreTrainedTokenizerBase, ending: str
) -> int | None:
    """Return the token that ends a turn, from the text after an assistant's message: its first
    special token, or else its first token other than white space; None if there is none.
    """
    ids = published.encode(ending, add_special_tokens=False).ids
    special = set(tokenizer.all_special_ids)
    for token_id, token in published.get_added_tokens_decoder().items():
        if token.special:
            special.add(token_id)
    for token_id in ids:
        if token_id in special:
            return token_id
    visible = (token_id for token_id in ids if published.decode([token_id]).strip())
    return next(visible, None)


def _differs(what: str, where: str) -> ConfigError:
    return ConfigError(
        what,
        where,
        "save the tokenizer again with save_pretrained; in tokenizer_config.json set "
        "tokenizer_class to PreTrainedTokenizerFast",
        key="model.name_or_path",
        code="tokens-differ",
    )
