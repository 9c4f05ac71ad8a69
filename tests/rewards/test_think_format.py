import pytest

from rewards.think_format import score


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>a</think> <answer>b</answer>", 1.0),
        ("<think></think><answer></answer> after", 1.0),
        ("<think>a</think> b", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_score(text, reward):
    assert score(text, None).reward == reward
