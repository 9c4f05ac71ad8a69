"""Tasks: default columns, prompt wording and answer format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.problems.tasks import knights_knaves, math


@dataclass(frozen=True)
class Task:
    """Defaults of a task.

    Columns are tried in order and may be dotted (``reward_model.ground_truth``). ``ask`` converts a
    question to the user message. ``raw_template`` is the full prompt for models without a chat
    template and contains ``{system}`` and ``{question}``. ``read_answer`` converts an answer to the
    format that the reward expects; what it raises becomes the error of the row. ``difficulty``
    derives a label from the answer if there is no difficulty column.
    """

    prompt_columns: tuple[str, ...]
    answer_columns: tuple[str, ...]
    difficulty_columns: tuple[str, ...]
    ask: Callable[[str], str] = lambda question: question
    read_answer: Callable[[Any], Any] = lambda answer: answer
    difficulty: Callable[[Any], str] = lambda answer: ""
    prefill: str = ""
    system_prompt: str = ""
    raw_template: str = "{question}"


TASKS: dict[str, Task] = {
    "knights_knaves": Task(
        prompt_columns=("prompt", "quiz", "question"),
        answer_columns=("reward_model.ground_truth", "solution_text_format", "answer"),
        difficulty_columns=("difficulty",),
        read_answer=knights_knaves.read_answer,
        difficulty=knights_knaves.difficulty,
        prefill=knights_knaves.PREFILL,
        system_prompt=knights_knaves.SYSTEM_PROMPT,
        raw_template=knights_knaves.RAW_TEMPLATE,
    ),
    "math": Task(
        prompt_columns=("prompt", "problem", "question", "0.value"),
        answer_columns=(
            "reward_model.ground_truth",
            "answer",
            "final_answer",
            "1.ground_truth.value",
        ),
        difficulty_columns=("difficulty", "level", "extra_info.difficulty", "extra_info.level"),
        ask=math.ask,
        read_answer=math.read_answer,
    ),
    "addition": Task(
        prompt_columns=("prompt", "question"),
        answer_columns=("answer",),
        difficulty_columns=("difficulty",),
        read_answer=math.read_answer,
    ),
    "custom": Task(
        prompt_columns=("prompt", "question"),
        answer_columns=("answer", "reward_model.ground_truth"),
        difficulty_columns=("difficulty", "level"),
    ),
}
