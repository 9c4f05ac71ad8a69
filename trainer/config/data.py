"""Problem sources and prompt settings."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from loptune.section import Count, Section, needs


class DatasetConfig(Section):
    """A source of problems."""

    source: str = "generated"
    """`generated`, or a parquet, jsonl, json or csv file, a file pattern, a folder or a Hub name"""
    name: str | None = None
    """Hub subset (configuration) name"""
    split: str = "train"
    """Hub split, or generated split: train, dev or test"""
    columns: dict[str, str] = Field({})
    """field (prompt, answer, difficulty, source) -> data column"""
    people: list[Annotated[int, Field(ge=2, le=8)]] = needs(
        "source=generated", [2, 3], min_length=1
    )
    """numbers of people in generated Knights-and-Knaves puzzles"""
    digits: list[Annotated[int, Field(ge=1, le=3)]] = needs("source=generated", [1], min_length=1)
    """numbers of digits of the terms in generated additions"""
    size: Count = needs("source=generated", 100)
    """number of distinct generated problems"""
    limit: Count | None = None
    """use only the first N problems of the source"""


def as_dataset(value: Any) -> Any:
    """Convert a bare source string, as in ``data.train: problems.jsonl``, to a dataset mapping."""
    return {"source": value} if isinstance(value, str) else value


def _as_datasets(value: Any) -> Any:
    items = [value] if isinstance(value, str | Mapping | DatasetConfig) else value
    return [as_dataset(item) for item in items] if isinstance(items, list | tuple) else items


Task = Literal["knights_knaves", "math", "addition", "custom"]
PromptFormat = Literal["auto", "raw", "chat"]

_DatasetsInput = str | DatasetConfig | list[str | DatasetConfig]
Datasets = Annotated[
    list[DatasetConfig], BeforeValidator(_as_datasets, _DatasetsInput), Field(min_length=1)
]


class DataConfig(Section):
    """Training problems and prompt format."""

    task: Task = "knights_knaves"
    """task, which sets the default prompt, prefill and column mapping"""
    train: Datasets = Field([DatasetConfig()])
    """one training source, or a list of them"""
    prompt_format: PromptFormat = "auto"
    """raw text, chat template, or auto: chat if the tokenizer has a template"""
    prompt_template: str | None = None
    """user message template with {question}; replaces the task's template"""
    system_prompt: str | None = None
    """system message for chat prompts; replaces the task's message"""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """arguments of the model's chat template, such as {enable_thinking: false}"""
    last_assistant: Literal["refuse", "drop", "continue"] = "refuse"
    """if a conversation ends with an assistant turn: refuse the data, drop the turn, or let
    completions continue it
    """
    prefill: str | None = None
    """prefix of every completion; null: the task's prefill"""
    max_prompt_tokens: Count = 1024
    """maximum prompt length; longer prompts are dropped with a warning [tokens]"""
    shuffle: bool = True
    """shuffle the problems in every epoch"""
    drop_last: bool = False
    """drop the last, incomplete step of an epoch"""

    def of_task(self, task: Task | None, prompt_format: PromptFormat | None) -> "DataConfig":
        """Return these settings with a different task or prompt format; None keeps the current one.

        Prompts of a different task use that task's template, system prompt and prefill.
        """
        changes: dict[str, Any] = {}
        if task not in (None, self.task):
            changes = {"task": task, "prompt_template": None, "system_prompt": None}
            changes["prefill"] = None
        if prompt_format is not None:
            changes["prompt_format"] = prompt_format
        return self.model_copy(update=changes)
