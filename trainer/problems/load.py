"""Load problems: generated, from files, or from the Hub."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from loptune.errors import ConfigError, described
from trainer.config.data import DataConfig, DatasetConfig
from trainer.config.schema import TrainConfig
from trainer.problems.prompts import (
    LastTurnError,
    PromptBuilder,
    Question,
    as_question,
    as_tools,
    check_template,
    ending_with_user,
)
from trainer.problems.rows import (
    Row,
    check_fields,
    find_column,
    read_rows,
    require_column,
    value_at,
)
from trainer.problems.tasks import TASKS, Task, addition, puzzle_generator
from trainer.problems.tasks.knights_knaves import compact_prompt
from trainer.problems.tasks.splits import checked_split
from trainer.types import Problem

_QUANTITIES = ("accuracy", "reward", "completion_length", "truncated", "pass_at_k")

_log = logging.getLogger(__name__)


def load_problems(
    dataset: DatasetConfig | Sequence[DatasetConfig],
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    section: str = "data.train",
) -> list[Problem]:
    """Load all problems of one or several datasets.

    Prompts longer than ``data.max_prompt_tokens`` are dropped with a warning. ``section`` is the
    key of the datasets in the configuration, which errors name.

    Raises:
        MissingError: missing or unreadable data.
        ConfigError: data in the wrong format; the error shows file, row (from 1) and column.
    """
    check_template(data)
    sources = [dataset] if isinstance(dataset, DatasetConfig) else list(dataset)
    problems = []
    for number, source in enumerate(sources):
        place = section if len(sources) == 1 else f"{section}.{number}"
        problems += _load(source, data, tokenizer, place)
    return problems


def load_evaluation_sets(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[Problem]]:
    """Load every evaluation set. Raises like `load_problems`, and ConfigError if two sets would
    write the same metric.
    """
    sets = {}
    for name, dataset in config.evaluation.sets.items():
        section = f"evaluation.sets.{name}"
        sets[name] = load_problems(dataset, config.data_of_set(name), tokenizer, section)
    seen: set[str] = set()
    for metric in metric_names(sets):
        if metric in seen:
            label = metric.removeprefix("eval/accuracy/")
            raise ConfigError(
                f"{label} is both an evaluation set and a difficulty label: both would write "
                f"{metric}",
                f"evaluation.sets.{label}",
                "rename the set",
                key=f"evaluation.sets.{label}",
                code="metric-name-taken",
            )
        seen.add(metric)
    return sets


def metric_names(sets: Mapping[str, Sequence[Problem]]) -> Iterator[str]:
    """Yield the names of all metrics that an evaluation of the sets may log."""
    yield "eval/scoring_failures"
    for index, (name, problems) in enumerate(sets.items()):
        is_first = index == 0  # the metrics of the first set do not contain its name
        for quantity in _QUANTITIES:
            yield f"eval/{quantity}" if is_first else f"eval/{quantity}/{name}"
        labels = {problem.difficulty or "none" for problem in problems}
        if len(labels) > 1:
            for label in labels:
                yield f"eval/accuracy/{label}" if is_first else f"eval/accuracy/{name}.{label}"


def encode_prompt(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> tuple[int, ...]:
    """Return the token ids of prompt + prefill. Adds the BOS token if the tokenizer does and the
    text has none.
    """
    ids: list[int] = tokenizer.encode(problem.prompt + problem.prefill, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:1] != [bos] and tokenizer.encode("")[:1] == [bos]:
        return (bos, *ids)
    return tuple(ids)


def _load(
    dataset: DatasetConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase, section: str
) -> list[Problem]:
    check_fields(dataset)
    if dataset.source == "generated":
        problems = _generated(dataset, data, tokenizer, section)
    else:
        problems = _from_rows(dataset, data, tokenizer, section)
    if _is_word_level(tokenizer):
        for problem in problems:
            text = problem.prompt + problem.prefill
            _check_vocabulary(tokenizer, text, f"source {dataset.source}")
    encoded = tokenizer([p.prompt + p.prefill for p in problems], add_special_tokens=False)[
        "input_ids"
    ]
    added = len(encode_prompt(tokenizer, problems[0])) - len(encoded[0])
    kept = [
        problem
        for problem, ids in zip(problems, encoded, strict=True)
        if len(ids) + added <= data.max_prompt_tokens
    ]
    if not kept:
        raise ConfigError(
            f"all {len(problems)} prompts of {dataset.source} are longer than "
            f"{data.max_prompt_tokens} tokens",
            "data.max_prompt_tokens",
            "raise data.max_prompt_tokens",
            key="data.max_prompt_tokens",
            code="prompts-too-long",
        )
    if len(kept) < len(problems):
        _log.warning(
            "%s: dropped %d of %d prompts longer than %d tokens",
            dataset.source,
            len(problems) - len(kept),
            len(problems),
            data.max_prompt_tokens,
        )
    return kept


def _generated(
    dataset: DatasetConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase, section: str
) -> list[Problem]:
    if data.task not in _GENERATORS:
        key = _key_of("task", dataset, section)
        raise ConfigError(
            f"task {data.task} has no problem generator",
            f"{key}, {section}.source",
            f"set {key} to one of {', '.join(sorted(_GENERATORS))}, or use a file or a Hub "
            f"name as source",
            key=key,
            code="no-generator",
        )
    return _GENERATORS[data.task](dataset, data, tokenizer, section)


def _key_of(setting: str, dataset: DatasetConfig, section: str) -> str:
    """Return the key of a prompt setting that is in effect for a dataset: its own, if it overrides
    the setting, as an evaluation set may.
    """
    own = getattr(dataset, setting, None) is not None
    return f"{section}.{setting}" if own else f"data.{setting}"


def _prompt_builder(
    dataset: DatasetConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase, section: str
) -> PromptBuilder:
    format_key = _key_of("prompt_format", dataset, section)
    return PromptBuilder(TASKS[data.task], data, tokenizer, section, format_key)


def _puzzles(
    dataset: DatasetConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase, section: str
) -> list[Problem]:
    split = checked_split(dataset.split, key=f"{section}.split")
    puzzles = puzzle_generator.generate(split, dataset.people, dataset.size)
    prompts = _prompt_builder(dataset, data, tokenizer, section)
    problems = []
    for puzzle in puzzles[: dataset.limit]:
        if _is_word_level(tokenizer):
            prompt = compact_prompt(puzzle)
            prefill = TASKS[data.task].prefill if data.prefill is None else data.prefill
        else:
            prompt, prefill = prompts.build(as_question(puzzle.text))
        people = str(len(puzzle.names))
        problems.append(
            Problem(
                problem_id=puzzle.key,
                prompt=prompt,
                prefill=prefill,
                answer=puzzle.solution_text,
                source="generated",
                difficulty=people,
            )
        )
    return problems


def _sums(
    dataset: DatasetConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase, section: str
) -> list[Problem]:
    split = checked_split(dataset.split, key=f"{section}.split")
    sums = addition.generate(split, dataset.digits, dataset.size)
    prompts = _prompt_builder(dataset, data, tokenizer, section)
    problems = []
    for addends in sums[: dataset.limit]:
        prompt, prefill = prompts.build(as_question(addends.question))
        problems.append(
            Problem(
                problem_id=f"{addends.left}+{addends.right}",
                prompt=prompt,
                prefill=prefill,
                answer=addends.answer,
                source="generated",
                difficulty=str(addends.digits),
            )
        )
    return problems


_GENERATORS = {"knights_knaves": _puzzles, "addition": _sums}


def _from_rows(
    dataset: DatasetConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase, section: str
) -> list[Problem]:
    rows = read_rows(dataset, section)
    task = TASKS[data.task]
    columns = dataset.columns
    usual = {
        "prompt": task.prompt_columns,
        "answer": task.answer_columns,
        "difficulty": task.difficulty_columns,
        "source": ("data_source", "source"),
    }
    names = {field: (*known, *_mapped_in_training(field, data)) for field, known in usual.items()}
    prompt_column = require_column(rows[0], "prompt", columns, names["prompt"])
    answer_column = require_column(rows[0], "answer", columns, names["answer"])
    difficulty_column = find_column(rows[0], "difficulty", columns, names["difficulty"])
    source_column = find_column(rows[0], "source", columns, names["source"])
    levels: list[Any] = [None] * len(rows)
    if difficulty_column:
        levels = [value_at(row, difficulty_column) for row in rows]
    use_bands = any(isinstance(level, float) and not level.is_integer() for level in levels)
    prompts = _prompt_builder(dataset, data, tokenizer, section)
    dropped_turns = 0
    problems = []
    for row, level in zip(rows, levels, strict=True):
        question, answer = _read(row, prompt_column, answer_column, task)
        try:
            asked = ending_with_user(question, data.last_assistant)
        except LastTurnError as error:
            what, hint = error.args
            raise ConfigError(
                what,
                row.where(prompt_column),
                hint,
                key="data.last_assistant",
                code="last-turn-not-user",
            ) from error
        dropped_turns += len(asked.messages) < len(question.messages) and not asked.prefill
        prompt, prefill = prompts.build(asked)
        source = Path(dataset.source).stem
        if source_column:
            source = str(value_at(row, source_column) or source)
        with _value_errors(row, answer_column if level is None else str(difficulty_column)):
            difficulty = (
                task.difficulty(answer) if level is None else _difficulty_label(level, use_bands)
            )
        problems.append(
            Problem(
                problem_id=_problem_id(question, answer),
                prompt=prompt,
                prefill=prefill,
                answer=answer,
                source=source,
                difficulty=difficulty,
                columns=row.values,
                place=row.where(answer_column),
            )
        )
    prompts.report(dataset.source)
    if dropped_turns:
        _log.warning(
            "%s: left out the assistant's last turn in %d of %d conversations",
            dataset.source,
            dropped_turns,
            len(rows),
        )
    return problems


def _mapped_in_training(field: str, data: DataConfig) -> tuple[str, ...]:
    """Return the columns that training data maps to a field, so that an evaluation set from the
    same table does not need its own mapping.
    """
    return tuple(source.columns[field] for source in data.train if field in source.columns)


def _read(row: Row, prompt_column: str, answer_column: str, task: Task) -> tuple[Question, Any]:
    asked = value_at(row, prompt_column)
    answer = value_at(row, answer_column)
    for column, value in ((prompt_column, asked), (answer_column, answer)):
        if value is None:
            raise ConfigError(
                "the value is empty",
                row.where(column),
                "fill it in or remove the row",
                code="value-empty",
            )
        if isinstance(value, bytes):
            raise ConfigError(
                "the value is bytes",
                row.where(column),
                "write the column as text",
                code="value-bytes",
            )
    with _value_errors(row, prompt_column):
        question = replace(as_question(asked), tools=as_tools(row.values.get("tools")))
    with _value_errors(row, answer_column):
        return question, task.read_answer(answer)


@contextlib.contextmanager
def _value_errors(row: Row, column: str) -> Iterator[None]:
    """Raise an error that names the row and the column for whatever reading a value raises."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            str(error) if isinstance(error, ValueError) else described(error),
            row.where(column),
            "correct the row or choose another column",
            code="value-unusable",
        ) from error


def _is_word_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer is word-level and needs compact prompts (set in the tiny model's
    tokenizer config).
    """
    return bool(tokenizer.init_kwargs.get("loptune_compact_prompts"))


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, text: str, where: str) -> None:
    # A word-level tokenizer silently drops unknown words, so decode to detect them.
    decoded = tokenizer.decode(
        tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False
    )
    if decoded == text:
        return
    present = set(decoded.split())
    unknown = sorted({word for word in text.split() if word not in present})
    raise ConfigError(
        f"words not in the model's vocabulary: {', '.join(unknown[:10])}",
        where,
        "the built-in tiny model only supports generated puzzles; use another model for other data",
        key="model.name_or_path",
        code="word-unknown",
    )


def _difficulty_label(level: Any, banded: bool) -> str:
    # Fractional difficulties are measured percentages: group them into five bands, not one metric
    # per value.
    if banded:
        low = min(80, int(float(level) // 20) * 20)
        return f"{low}-{low + 20}"
    return str(int(level)) if isinstance(level, float) else str(level)


def _problem_id(question: Question, answer: Any) -> str:
    content = json.dumps(
        [[dict(message) for message in question.messages], answer], sort_keys=True, default=str
    )
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
