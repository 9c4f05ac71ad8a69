import pytest

from tests.trainer.tokenizers_for_tests import CHAT_TEMPLATE, NO_SYSTEM_TEMPLATE, byte_tokenizer
from trainer.config.data import DataConfig
from trainer.errors import ConfigError
from trainer.problems.prompts import as_question, build_prompt, check_template
from trainer.problems.tasks import TASKS
from trainer.problems.tasks.knights_knaves import SYSTEM_PROMPT

PLAIN, CHAT = byte_tokenizer(), byte_tokenizer(CHAT_TEMPLATE)
CHATML = "<|im_start|>system\nS\n<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\n<think>"


def built(question, tokenizer, task="custom", **data):
    return build_prompt(as_question(question), TASKS[task], DataConfig(task=task, **data), tokenizer)


def test_raw_is_the_text_as_it_is():
    assert built("What?", PLAIN) == ("What?", "")
    assert built("What?", CHAT, prompt_format="raw") == ("What?", "")


def test_auto_uses_the_chat_template_where_there_is_one():
    assert built("What?", CHAT) == ("<user>What?</user><assistant>", "")


def test_knights_knaves_in_a_chat_has_the_papers_system_prompt_and_prefill():
    prompt, prefill = built("Who?", CHAT, task="knights_knaves")
    assert prompt == f"<system>{SYSTEM_PROMPT}</system><user>Who?</user><assistant>"
    assert prefill == "<think>"


def test_knights_knaves_without_chat_template_is_the_published_form():
    prompt, prefill = built("Who?", PLAIN, task="knights_knaves", system_prompt="S")
    assert prompt + prefill == CHATML


@pytest.mark.parametrize("tokenizer", [PLAIN, CHAT])
def test_a_templated_prompt_stays_and_its_prefill_is_moved_out(tokenizer):
    prompt, prefill = built(CHATML, tokenizer, task="knights_knaves")
    assert (prompt, prefill) == (CHATML.removesuffix("<think>"), "<think>")


def test_own_prefill_is_neither_doubled_nor_lost():
    assert built("Think.<think>", PLAIN, prefill="<think>") == ("Think.", "<think>")
    assert built("Think.", PLAIN, prefill="So") == ("Think.", "So")
    assert built("Who?", CHAT, task="knights_knaves", prefill="")[1] == ""


def test_a_chat_template_that_opens_think_itself_does_not_double_it():
    tokenizer = byte_tokenizer(CHAT_TEMPLATE + "<think>\n")
    prompt, prefill = built("Who?", tokenizer, task="knights_knaves", system_prompt="")
    assert (prompt, prefill) == ("<user>Who?</user><assistant>", "<think>")


def test_chat_takes_the_question_out_of_a_published_prompt():
    prompt, prefill = built(CHATML, CHAT, task="knights_knaves", prompt_format="chat", system_prompt="T")
    assert (prompt, prefill) == ("<system>T</system><user>Who?</user><assistant>", "<think>")


def test_chat_refuses_what_it_cannot_take_apart():
    with pytest.raises(ConfigError, match="already carry a chat template"):
        built("<|begin_of_text|>Who?", CHAT, prompt_format="chat")


def test_math_instruction_is_added_once():
    added = "1+1? Let's think step by step and output the final answer within \\boxed{}."
    assert built("1+1?", PLAIN, task="math")[0] == added
    assert built(added, PLAIN, task="math")[0] == added
    gsm8k = '1+1? Let\'s think step by step and output the final answer after "####".'
    assert built(gsm8k, PLAIN, task="math")[0] == gsm8k


def test_own_template_replaces_the_tasks():
    template = "Q: {question} \\boxed{}\nA:"
    assert built("1+1?", PLAIN, task="math", prompt_template=template)[0] == "Q: 1+1? \\boxed{}\nA:"
    assert built("1+1?", CHAT, task="math", prompt_template=template)[0] == (
        "<user>Q: 1+1? \\boxed{}\nA:</user><assistant>"
    )
    assert built(CHATML, PLAIN, task="knights_knaves", prompt_template="Q: {question}")[0] == "Q: Who?"


def test_messages_keep_their_roles():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert built(messages, CHAT)[0] == (
        "<system>Be brief.</system><user>a</user><assistant>b</assistant><user>c</user><assistant>"
    )
    assert built(messages, CHAT, system_prompt="Other.")[0].startswith("<system>Other.</system><user>a")
    assert built(messages, CHAT, system_prompt="")[0].startswith("<user>a")
    assert built(messages, PLAIN)[0] == "Be brief.\n\na\n\nb\n\nc"


def test_chat_without_template_is_refused():
    with pytest.raises(ConfigError, match="no chat template"):
        built("What?", PLAIN, prompt_format="chat")


def test_a_template_without_system_role_says_what_to_set():
    tokenizer = byte_tokenizer(NO_SYSTEM_TEMPLATE)
    with pytest.raises(ConfigError, match=r'data\.system_prompt=""'):
        built("Who?", tokenizer, task="knights_knaves")
    assert built("Who?", tokenizer, task="knights_knaves", system_prompt="")[0] == "<user>Who?</user><assistant>"


def test_a_template_without_question_is_refused():
    with pytest.raises(ConfigError, match=r"no \{question\}"):
        check_template(DataConfig(prompt_template="Solve it."))


@pytest.mark.parametrize("value", [3, [], [{"role": "user", "content": None}], [{"role": "user"}], ["a"], None])
def test_what_is_no_prompt_is_refused(value):
    with pytest.raises(ValueError, match="text or a list of chat messages"):
        as_question(value)
