"""Stop strings end completions at the same token on every engine."""

import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.refusals import refused
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.schema import apply_overrides, load_config
from trainer.rollouts.collect import sample_completions, sampling_params
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.stop_strings import StopStrings
from trainer.rollouts.transformers import TransformersEngine
from trainer.types import Completion

TOKENIZER = byte_tokenizer()
PROMPT = tuple(TOKENIZER.encode("Say: ", add_special_tokens=False))


class Words:
    """A tokenizer whose tokens are words; decoding drops the first one's space, as SentencePiece
    does.
    """

    words = ("<pad>", "</s>", " the", " answer", ">", "</", "answer", ">\n\n", " is", "</a", "ns")
    pad_token_id = 0

    def decode(self, ids, **options):
        return "".join(self.words[number] for number in ids).removeprefix(" ")

    def ids(self, *words):
        return tuple(map(self.words.index, words))


WORDS = Words()


def cut(words, *strings, in_text=True, prompt=(" the",)):
    ids = WORDS.ids(*words)
    completion = Completion(ids, tuple(-float(place) for place in range(len(ids))), "length")
    stop = StopStrings(strings, in_text, WORDS, stop_token_ids=(1,))
    result = stop.cut(completion, WORDS.ids(*prompt))
    assert result.rollout_logprobs == completion.rollout_logprobs[: len(result.token_ids)]
    for length in range(1, len(ids) + 1):
        is_past = length >= len(result.token_ids) and bool(result.stop_string)
        assert stop.ends(ids[:length], WORDS.ids(*prompt)) == is_past
    return result


@pytest.mark.parametrize(
    ("words", "kept", "with_string", "without"),
    [
        # in one token with more behind it, over several tokens, and in the middle of tokens
        ((" is", "</", "answer", ">\n\n", " the"), 4, " is</answer>", " is"),
        ((" is", "</a", "ns", " is", "</", "answer", ">", " the"), 7, None, " is</ans is"),
        (("</", "answer", ">"), 3, "</answer>", ""),
    ],
)
def test_the_token_that_completes_a_stop_string_is_the_last(words, kept, with_string, without):
    result = cut(words, "</answer>")
    assert (len(result.token_ids), result.finish_reason) == (kept, "stop")
    assert result.stop_string == "</answer>"
    assert result.text == (with_string or f"{without}</answer>")
    assert cut(words, "</answer>", in_text=False).text == without


def test_the_first_of_several_ends_the_completion_and_without_one_nothing_changes():
    words = (" is", " answer", " the", " is")
    assert cut(words, " the", "answer").stop_string == "answer"
    assert cut(words, "wer", "answer").stop_string == "answer"  # both end there: the longer one
    result = cut((" is", " answer", "</s>"), "User:")
    assert (result.text, result.finish_reason, len(result.token_ids)) == (" is answer", "length", 3)
    # a stop string of the prompt, or one that begins in it, ends nothing
    assert not cut((">", " is"), "answer>", prompt=(" the", " answer")).stop_string


def test_the_built_in_sampler_stops_where_a_completion_would_be_cut():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    engine = TransformersEngine(LlamaForCausalLM(config).eval(), pad_token_id=0)
    seeds = [list(range(20))]

    def sampled(stop):
        params = SamplingParams(1.0, max_new_tokens=60, stop_token_ids=(1,), stop=stop)
        raw = engine.generate([PROMPT], seeds, params)[0]
        return raw, sample_completions(engine, TOKENIZER, [PROMPT], seeds, params)[0]

    _, whole = sampled(None)
    pairs = [pair for each in whole for pair in re.findall(r"[!-~]{2}", each.text)]
    stop = StopStrings((*pairs[:3], "e"), True, TOKENIZER, (1,))
    raw, stopped = sampled(stop)
    assert [each.token_ids for each in raw] == [each.token_ids for each in stopped]
    assert [each.finish_reason for each in raw] == [each.finish_reason for each in stopped]
    for before, after in zip(whole, stopped, strict=True):
        expected = stop.cut(before, PROMPT)
        assert (after.token_ids, after.text) == (expected.token_ids, expected.text)
    assert {each.stop_string for each in stopped} >= {"", "e"}


def test_the_configuration_and_other_programs_names():
    config = apply_overrides(
        load_config("tiny_kk"), {"rollout.stop": ["User:"], "rollout.stop_in_text": False}
    )
    assert sampling_params(config, TOKENIZER).stop.strings == ("User:",)
    for name in ("stop_strings", "stop_sequences"):
        with refused("unknown-key") as caught:
            apply_overrides(config, {f"rollout.{name}": ["User:"]})
        assert caught.value.hint.startswith("set rollout.stop,")
