import pytest

from tests.llm.conftest import MODEL
from trainer.config.schema import apply_overrides, load_config
from trainer.problems.load import encode_prompt, load_problems
from trainer.rollouts.build import build_rewards

pytestmark = pytest.mark.llm

SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n"
)
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"


def first_problem(config, tokenizer):
    return load_problems(config.data.train, config.data, tokenizer)[0]


def test_a_question_is_put_into_the_models_own_chat_template(tokenizer):
    problem = first_problem(load_config("smollm2_addition"), tokenizer)
    left, right = problem.problem_id.split("+")
    asked = f"What is {left} + {right}? Reply with the number only."
    assert problem.prompt == f"{SYSTEM}<|im_start|>user\n{asked}{ASSISTANT}"
    ids = encode_prompt(tokenizer, problem)
    # Control marks are one token each, and no second BOS stands before the first.
    assert ids[:2] == (1, tokenizer.convert_tokens_to_ids("system"))
    assert ids.count(1) == 3 and ids.count(2) == 2
    assert tokenizer.decode(ids) == problem.prompt


def test_a_puzzle_ends_in_the_opened_thought(tokenizer):
    settings = {"model.name_or_path": MODEL.name_or_path, "data.max_prompt_tokens": 400}
    problem = first_problem(apply_overrides(load_config("tiny_kk"), settings), tokenizer)
    assert problem.prefill == "<think>" and problem.prompt.endswith(ASSISTANT)
    ids = encode_prompt(tokenizer, problem)
    assert tokenizer.decode(ids) == problem.prompt + "<think>"
    prefill = tokenizer.encode("<think>", add_special_tokens=False)
    assert list(ids[-len(prefill) :]) == prefill


@pytest.mark.parametrize(
    "text",
    [
        "14",
        " 7 + 7 = 14.\n",
        "<think>Zoë</think>\n<answer>(1) Bob is a knave</answer>",
        "½ × 1,000 🙂\n\n x",
    ],
)
def test_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("text", "reward"), [("14", 1.0), ("7 + 7 = 14.", 1.0), ("15", 0.0), ("fourteen", 0.0)]
)
def test_rewards_read_what_the_tokenizer_gives_back(tokenizer, text, reward):
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    rewards = build_rewards(load_config("smollm2_addition").reward)
    try:
        [scored] = rewards.score([decoded], ["14"])
    finally:
        rewards.close()
    assert scored.score.reward == reward
