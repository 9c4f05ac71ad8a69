import pytest

from trainer.errors import ConfigError
from trainer.problems.epochs import training_steps


@pytest.mark.parametrize(
    ("epochs", "problems", "prompts", "drop_last", "steps"),
    [
        (5, 4_500, 64, True, 350),  # Knights and Knaves as published
        (5, 4_500, 64, False, 352),
        (5, 10_000, 128, True, 390),  # DSR-Uniform as published
        (5, 10_000, 128, False, 391),
        (1, 57_000, 128, True, 445),  # ORZ, of about so many
        (1, 4, 4, True, 1),
        (0.5, 10, 4, True, 1),
    ],
)
def test_steps_of_epochs(epochs, problems, prompts, drop_last, steps):
    assert training_steps(epochs, problems, prompts, drop_last) == steps


def test_steps_that_are_never_full_are_refused():
    with pytest.raises(ConfigError, match="3 problems do not fill one step of 4"):
        training_steps(1, 3, 4, drop_last=True)
