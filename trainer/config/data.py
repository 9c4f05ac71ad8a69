"""Sources of problems, and the prompts made of them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trainer.section import Count, Section, needs


class DatasetConfig(Section):
    """A source of problems."""

    source: str = "generated"
    """`generated`, a parquet/jsonl/csv file, or a hub dataset name"""
    name: str | None = None
    """hub configuration (subset) name"""
    split: str = "train"
    """hub split, or the generator's split: train, dev or test"""
    columns: dict[str, str] = Field({})
    """our field (prompt, answer, difficulty, source) -> column"""
    people: list[Annotated[int, Field(ge=2, le=8)]] = needs(
        "source=generated", [2, 3], min_length=1
    )
    """people per generated Knights-and-Knaves puzzle"""
    digits: list[Annotated[int, Field(ge=1, le=3)]] = needs("source=generated", [1], min_length=1)
    """digits of the numbers in generated additions"""
    size: Count = needs("source=generated", 100)
    """number of generated problems, all different"""
    limit: Count | None = None
    """use only the first N problems of the source"""


def as_dataset(value: Any) -> Any:
    """Read a bare source, as in ``data.train: problems.jsonl``, as a dataset."""
    return {"source": value} if isinstance(value, str) else value


def _as_datasets(value: Any) -> Any:
    items = [value] if isinstance(value, str | Mapping | DatasetConfig) else value
    return [as_dataset(item) for item in items] if isinstance(items, list | tuple) else items


_DatasetsInput = str | DatasetConfig | list[str | DatasetConfig]
Datasets = Annotated[
    list[DatasetConfig], BeforeValidator(_as_datasets, _DatasetsInput), Field(min_length=1)
]


class DataConfig(Section):
    """Problems to train on and how they are put to the policy."""

    task: Literal["knights_knaves", "math", "addition", "custom"] = "knights_knaves"
    """decides default prompt, prefill and column mapping"""
    train: Datasets = Field([DatasetConfig()])
    """one training source, or a list of them"""
    prompt_format: Literal["auto", "raw", "chat"] = "auto"
    """raw text, chat template, or auto: chat if the tokenizer has a template"""
    prompt_template: str | None = None
    """template with {question}; replaces the task's"""
    system_prompt: str | None = None
    """system message for chat prompts; replaces the task's"""
    prefill: str | None = None
    """prefix of every completion; the task's if null"""
    max_prompt_tokens: Count = 1024
    """longer prompts are dropped and counted [tokens]"""
    shuffle: bool = True
    """new order of the problems in every epoch"""
    drop_last: bool = False
    """leave out the last problems of an epoch that do not fill a step"""
