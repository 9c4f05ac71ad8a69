"""Tasks: where a problem stands in a row of data and how it is put to the policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.problems.tasks import knights_knaves, math


@dataclass(frozen=True)
class Task:
    """The defaults of one task.

    Columns are tried in order and may be dotted (``reward_model.ground_truth``). ``ask`` turns a
    question into the user's message; ``raw_template`` is the whole text for a policy without chat
    template and holds ``{system}`` and ``{question}``. ``read_answer`` brings an answer into the
    form its reward expects or raises ValueError; ``difficulty`` reads it from the answer where no
    column holds it.
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
