"""Build the token rows for comparing the paths of a run, from the user's own problems."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from trainer.config.schema import TrainConfig
from trainer.problems.load import encode_prompt
from trainer.rollouts.engine import RolloutEngine, SamplingParams
from trainer.types import Problem

# short: the problems' own prompts; boundary: a completion that crosses the length on which the
# model's positions were trained; long: the longest row that the configuration allows
Kind = Literal["short", "boundary", "long"]

NEW_TOKENS = 12  # sampled tokens per row
_PROBLEMS = 3
_SEEDS = (1, 2)


@dataclass(frozen=True)
class Row:
    """A prompt, a sampled completion, and the engine's log-probabilities of its tokens."""

    kind: Kind
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    sampled: tuple[float, ...]

    def cut(self, length: int) -> "Row":
        """Return the row with at most ``length`` tokens of its completion."""
        return replace(self, completion=self.completion[:length], sampled=self.sampled[:length])


@dataclass(frozen=True)
class Prompts:
    """Prompts of one kind, and the number of tokens to sample after each."""

    kind: Kind
    prompts: Sequence[tuple[int, ...]]
    seeds: Sequence[int]
    new_tokens: int

    @property
    def tokens(self) -> int:
        """Total number of tokens of all rows."""
        per_row = sum(len(prompt) + self.new_tokens for prompt in self.prompts)
        return per_row * len(self.seeds)


def short_prompts(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]
) -> Prompts:
    """Return the distinct prompts of up to three problems, with different lengths if possible."""
    by_length = sorted(problems, key=lambda problem: len(problem.prompt))
    chosen = [by_length[0], by_length[len(by_length) // 2], by_length[-1]][:_PROBLEMS]
    prompts = tuple(dict.fromkeys(encode_prompt(tokenizer, problem) for problem in chosen))
    new_tokens = min(NEW_TOKENS, config.rollout.max_new_tokens)
    return Prompts("short", prompts, _SEEDS, new_tokens)


def long_prompts(
    config: TrainConfig, short: Prompts, model_config: Any, limit: int
) -> list[Prompts]:
    """Return a prompt that ends just before the trained length, and one of the maximum length.

    The tokens of the short prompts are repeated. A prompt is left out if the configuration cannot
    reach its length, if it would not be longer than the short ones, or if it exceeds ``limit``
    tokens.
    """
    longest_prompt = max(map(len, short.prompts))
    longest = longest_prompt + config.longest_completion
    trained = trained_length(model_config)
    text = [token for prompt in short.prompts for token in prompt]
    found = []
    lengths: list[tuple[Kind, int]] = []
    if trained is not None and trained < longest:
        lengths.append(("boundary", trained - short.new_tokens // 2))
    lengths.append(("long", longest - short.new_tokens))
    for kind, length in lengths:
        if longest_prompt < length <= limit - short.new_tokens:
            repeated = text * (length // len(text) + 1)
            found.append(Prompts(kind, [tuple(repeated[:length])], _SEEDS[:1], short.new_tokens))
    return found


def trained_length(model_config: Any) -> int | None:
    """Return the context length that the model was trained on before any rotary scaling; None if it
    has no position limit.
    """
    text = model_config.get_text_config()
    lengths = [
        settings["original_max_position_embeddings"]
        for settings in _rope_settings(text)
        if settings.get("original_max_position_embeddings")
    ]
    length: int | None = getattr(text, "max_position_embeddings", None)
    return min(lengths, default=length)


def rows_within(rows: Sequence[Row], length: int | None) -> list[Row] | None:
    """Return the rows without the beginnings of their prompts, so that each has at most ``length``
    tokens; None if no row is longer.
    """
    if length is None or all(len(row.prompt) + len(row.completion) <= length for row in rows):
        return None
    cut = []
    for row in rows:
        kept = max(1, length - len(row.completion))
        cut.append(replace(row, kind="short", prompt=row.prompt[-kept:]))
    return cut


def _rope_settings(text: Any) -> list[dict[str, Any]]:
    """Return the rotary settings of the model, or one for each layer type."""
    settings = getattr(text, "rope_parameters", None) or {}
    if all(isinstance(value, dict) for value in settings.values()):
        return list(settings.values())
    return [settings]


def sample_rows(engine: RolloutEngine, prompts: Prompts, temperature: float) -> list[Row]:
    """Sample completions from the full distribution, without stop tokens. The rows of a prompt are
    consecutive and have different numbers of completion tokens.
    """
    params = SamplingParams(temperature=temperature, max_new_tokens=prompts.new_tokens)
    seeds = [list(prompts.seeds) for _ in prompts.prompts]
    groups = engine.generate(prompts.prompts, seeds, params)
    rows: list[Row] = []
    for prompt, group in zip(prompts.prompts, groups, strict=True):
        for completion in group:
            row = Row(
                prompts.kind, prompt, completion.token_ids, tuple(completion.rollout_logprobs)
            )
            rows.append(row.cut(max(1, prompts.new_tokens - 3 * (len(rows) % 3))))
    return rows
