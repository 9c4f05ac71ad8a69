import pytest

from trainer.problems.tasks.math import INSTRUCTION, ask, read_answer


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("42", "42"),
        (r" \frac{1}{2} ", r"\frac{1}{2}"),
        ("6 * 7 = 42, so\n#### 42", "42"),
        (42, 42),
        (42.0, 42),
        (10**400, 10**400),
        (2**53 + 1, 2**53 + 1),
        (0.5, 0.5),
        (["1/2", 0.5], ["1/2", 0.5]),
    ],
)
def test_answers_are_text_numbers_or_lists_of_them(value, answer):
    read = read_answer(value)
    assert read == answer
    assert type(read) is type(answer)


@pytest.mark.parametrize(
    "value",
    [True, None, {"answer": 1}, [], ["1", None], "solved\n####  ", float("nan"), float("inf")],
)
def test_other_answers_are_refused(value):
    with pytest.raises(ValueError):
        read_answer(value)


def test_the_instruction_is_added_unless_the_question_says_how_to_answer():
    assert ask("What is 6 * 7?") == f"What is 6 * 7? {INSTRUCTION}"
    for question in (
        r"Put it into \boxed{}.",
        "Write #### before it.",
        "Let's think step by step.",
    ):
        assert ask(question) == question
