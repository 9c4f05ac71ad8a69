"""Sources of problems, and the prompts made of them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trainer.section import Count, Section, needs


class DatasetConfig(Section):
    """A source of problems."""

    source: str = Field("generated", description="`generated`, a parquet/jsonl/csv file, or a hub dataset name")
    name: str | None = Field(None, description="hub configuration (subset) name")
    split: str = Field("train", description="hub split, or the generator's split: train, dev or test")
    columns: dict[str, str] = Field(
        default_factory=dict, description="our field (prompt, answer, difficulty, source) -> column"
    )
    people: list[Annotated[int, Field(ge=2, le=8)]] = Field(
        [2, 3],
        description="people per generated Knights-and-Knaves puzzle",
        min_length=1,
        json_schema_extra=needs("source=generated"),
    )
    digits: list[Annotated[int, Field(ge=1, le=3)]] = Field(
        [1],
        description="digits of the numbers in generated additions",
        min_length=1,
        json_schema_extra=needs("source=generated"),
    )
    size: Count = Field(
        100, description="number of generated problems, all different", json_schema_extra=needs("source=generated")
    )
    limit: Count | None = Field(None, description="use only the first N problems of the source")


def as_dataset(value: Any) -> Any:
    """Read a bare source, as in ``data.train: problems.jsonl``, as a dataset."""
    return {"source": value} if isinstance(value, str) else value


def _as_datasets(value: Any) -> Any:
    items = [value] if isinstance(value, str | Mapping | DatasetConfig) else value
    return [as_dataset(item) for item in items] if isinstance(items, list | tuple) else items


_DatasetsInput = str | DatasetConfig | list[str | DatasetConfig]
Datasets = Annotated[list[DatasetConfig], BeforeValidator(_as_datasets, _DatasetsInput), Field(min_length=1)]


class DataConfig(Section):
    """Problems to train on and how they are put to the policy."""

    task: Literal["knights_knaves", "math", "addition", "custom"] = Field(
        "knights_knaves", description="decides default prompt, prefill and column mapping"
    )
    train: Datasets = Field([DatasetConfig()], description="one training source, or a list of them")
    prompt_format: Literal["auto", "raw", "chat"] = Field(
        "auto", description="raw text, chat template, or auto: chat if the tokenizer has a template"
    )
    prompt_template: str | None = Field(None, description="template with {question}; replaces the task's")
    system_prompt: str | None = Field(None, description="system message for chat prompts; replaces the task's")
    prefill: str | None = Field(None, description="text that the answer starts with; the task's if null")
    max_prompt_tokens: Count = Field(1024, description="longer prompts are dropped and counted [tokens]")
    shuffle: bool = Field(True, description="new order of the problems in every epoch")
    drop_last: bool = Field(False, description="leave out the last problems of an epoch that do not fill a step")
