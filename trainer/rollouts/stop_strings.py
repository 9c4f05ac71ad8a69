"""Stop strings: strings that end a completion, however they are tokenized.

The tokens up to the one that completes a stop string are sampled and trained. The text that the
reward reads ends with or before the stop string; any characters of the last token after it are
dropped. The completions of every engine are truncated by the same function, `StopStrings.cut`. The
built-in sampler also stops there, so that no tokens are wasted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.policy.published_tokenizer import decode
from trainer.types import Completion

_CONTEXT_TOKENS = 8  # number of prompt tokens to decode before a completion


def completion_text(
    tokenizer: Any,
    token_ids: Sequence[int],
    stop_token_ids: Sequence[int],
    prompt_ids: Sequence[int] = (),
) -> str:
    """Decode a completion without the stop token at its end and the pad tokens before it.

    The completion is decoded together with the end of its prompt, because a tokenizer like
    SentencePiece drops the space before the first token that it decodes: " 42" after "The answer
    is". All other special tokens stay in the text, because rewards look for them: ``<think>`` or
    tool calls are special tokens of many models.
    """
    completion = list(token_ids)
    if completion and completion[-1] in stop_token_ids:
        completion.pop()
    while completion and completion[-1] == tokenizer.pad_token_id:
        completion.pop()

    context = list(prompt_ids[-_CONTEXT_TOKENS:])
    text_of_context = decode(tokenizer, context)
    text_of_both = decode(tokenizer, [*context, *completion])
    if text_of_both.startswith(text_of_context):
        return text_of_both.removeprefix(text_of_context)
    # the prompt ends within a multi-byte character, which the completion continues
    return decode(tokenizer, completion)


@dataclass(frozen=True)
class StopStrings:
    """The configured stop strings, and the tokenizer of the completions."""

    strings: tuple[str, ...]  # ("</answer>", "User:")
    in_text: bool  # whether the text includes the stop string
    tokenizer: Any
    stop_token_ids: tuple[int, ...] = ()

    def cut(self, completion: Completion, prompt_ids: Sequence[int]) -> Completion:
        """Return the completion with its text, truncated at the stop string that ends first, if
        there is one.
        """
        text = self._text(completion.token_ids, prompt_ids)
        found = self._first(text)
        if found is None:
            return replace(completion, text=text)
        start, stop = found
        length = self._tokens_with(text[: start + len(stop)], completion.token_ids, prompt_ids)
        return replace(
            completion,
            token_ids=completion.token_ids[:length],
            rollout_logprobs=completion.rollout_logprobs[:length],
            finish_reason="stop",
            text=text[: start + len(stop)] if self.in_text else text[:start],
            stop_string=stop,
        )

    def ends(self, token_ids: Sequence[int], prompt_ids: Sequence[int]) -> bool:
        """Return whether the tokens of a running completion contain a stop string that the last one
        completes.
        """
        # A token has at least one byte, except rare tokens without text.
        window = max(len(string.encode()) for string in self.strings) + _CONTEXT_TOKENS
        if self._first(decode(self.tokenizer, token_ids[-window:])) is None:
            return False
        return self._first(self._text(token_ids, prompt_ids)) is not None

    def _text(self, token_ids: Sequence[int], prompt_ids: Sequence[int]) -> str:
        return completion_text(self.tokenizer, token_ids, self.stop_token_ids, prompt_ids)

    def _first(self, text: str) -> tuple[int, str] | None:
        """Return the start and the text of the stop string that ends first, or None. If several end
        at the same position, return the longest.
        """
        found = []
        for string in self.strings:
            start = text.find(string)
            if start >= 0:
                found.append((start + len(string), start, string))
        if not found:
            return None
        _, start, string = min(found)
        return start, string

    def _tokens_with(
        self, beginning: str, token_ids: Sequence[int], prompt_ids: Sequence[int]
    ) -> int:
        """Return the smallest number of tokens whose text contains the beginning, by bisection."""
        low, high = 1, len(token_ids)
        while low < high:
            middle = (low + high) // 2
            if self._text(token_ids[:middle], prompt_ids).startswith(beginning):
                high = middle
            else:
                low = middle + 1
        return low
