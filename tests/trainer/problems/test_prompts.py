import json
from dataclasses import replace

import pytest

from loptune.errors import ConfigError
from tests.refusals import refused
from tests.trainer.tokenizers_for_tests import CHAT_TEMPLATE, NO_SYSTEM_TEMPLATE, byte_tokenizer
from trainer.config.data import DataConfig
from trainer.problems import chat_template
from trainer.problems.prompts import PromptBuilder, as_question, as_tools, check_template
from trainer.problems.tasks import TASKS
from trainer.problems.tasks.knights_knaves import SYSTEM_PROMPT

PLAIN = byte_tokenizer()
CHAT = byte_tokenizer(CHAT_TEMPLATE)
CHATML = (
    "<|im_start|>system\nS\n<|im_end|>\n<|im_start|>user\nWho?\n<|im_end|>\n<|im_start|>assistant\n"
)
PUBLISHED = CHATML + "<think>"
WHO = "<user>Who?</user><assistant>"
INSTRUCTED = "1+1? Let's think step by step and output the final answer within \\boxed{}."
PUZZLE = {"task": "knights_knaves"}
MATH = {"task": "math"}
OWN = {"prompt_template": "Q: {question} \\boxed{}\nA:"}


def built(question, tokenizer, task="custom", **data):
    builder = PromptBuilder(TASKS[task], DataConfig(task=task, **data), tokenizer)
    return builder.build(as_question(question))


@pytest.mark.parametrize(
    ("question", "tokenizer", "data", "prompt", "prefill"),
    [
        ("What?", PLAIN, {}, "What?", ""),
        ("What?", CHAT, {"prompt_format": "raw"}, "What?", ""),
        ("What?", CHAT, {}, "<user>What?</user><assistant>", ""),
        # The paper's system prompt and prefill; without a chat template the published form.
        ("Who?", CHAT, PUZZLE, f"<system>{SYSTEM_PROMPT}</system>{WHO}", "<think>"),
        ("Who?", PLAIN, PUZZLE | {"system_prompt": "S"}, CHATML, "<think>"),
        # A prompt with a template keeps it, its prefill is moved out.
        (PUBLISHED, PLAIN, PUZZLE, CHATML, "<think>"),
        (PUBLISHED, CHAT, PUZZLE, CHATML, "<think>"),
        # A prefill is neither doubled nor lost.
        ("Think.<think>", PLAIN, {"prefill": "<think>"}, "Think.", "<think>"),
        ("Think.", PLAIN, {"prefill": "So"}, "Think.", "So"),
        ("Who?", CHAT, PUZZLE | {"system_prompt": "", "prefill": ""}, WHO, ""),
        (
            "Who?",
            byte_tokenizer(CHAT_TEMPLATE + "<think>\n"),
            PUZZLE | {"system_prompt": ""},
            WHO,
            "<think>",
        ),
        # The instruction of mathematics is added, unless there is a template.
        ("1+1?", PLAIN, MATH, INSTRUCTED, ""),
        ("1+1?", PLAIN, MATH | OWN, "Q: 1+1? \\boxed{}\nA:", ""),
        ("1+1?", CHAT, MATH | OWN, "<user>Q: 1+1? \\boxed{}\nA:</user><assistant>", ""),
    ],
)
def test_prompt_and_prefill(question, tokenizer, data, prompt, prefill):
    assert built(question, tokenizer, **data) == (prompt, prefill)


@pytest.mark.parametrize("data", [{"prompt_format": "chat"}, {"prompt_template": "Q: {question}"}])
def test_a_prompt_with_a_template_gets_no_other(data):
    with refused("already-templated"):
        built(PUBLISHED, CHAT, **data)


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
    assert built(messages, CHAT, system_prompt="Other.")[0].startswith(
        "<system>Other.</system><user>a"
    )
    assert built(messages, CHAT, system_prompt="")[0].startswith("<user>a")
    assert built(messages, PLAIN)[0] == "Be brief.\n\na\n\nb\n\nc"


def test_chat_without_template_is_refused():
    with refused("no-chat-template"):
        built("What?", PLAIN, prompt_format="chat")


def test_a_template_without_system_role_says_what_to_set():
    tokenizer = byte_tokenizer(NO_SYSTEM_TEMPLATE)
    with refused("template-refused", ConfigError, names=('data.system_prompt=""',)):
        built("Who?", tokenizer, task="knights_knaves")
    assert (
        built("Who?", tokenizer, task="knights_knaves", system_prompt="")[0]
        == "<user>Who?</user><assistant>"
    )


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{% include 'a' %}", "TypeError"),
        ("{% for i in range(10 ** 12) %}{% endfor %}", "OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ 'x' * 10 ** 10 }}", "MemoryError"),
        ("{{ 'x' * (2 ** 20 + 1) }}", "1048577"),
        ("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3, "TimeoutError"),
        ("{% if %}", "TemplateSyntaxError"),
        (" \n", " 1 "),
    ],
)
def test_a_template_that_fails_or_does_not_end_is_refused(template, fault, monkeypatch):
    monkeypatch.setattr(chat_template, "_TEMPLATE_LIMIT_S", 0.5)
    with refused("template-broken", ConfigError, names=(fault,)) as caught:
        built("What?", byte_tokenizer(template))
    assert "data.prompt_format=raw" in caught.value.hint


def test_a_template_without_question_is_refused():
    with refused("template-no-question", ConfigError, names=("{question}",)):
        check_template(DataConfig(prompt_template="Solve it."))


@pytest.mark.parametrize(
    "value",
    [3, [], [{"role": "user", "content": None}], [{"role": "user"}], [{"content": "a"}], None],
)
def test_what_is_no_prompt_is_refused(value):
    with refused("invalid-prompt", ValueError):
        as_question(value)


@pytest.mark.parametrize(
    "text",
    [
        "[{'role': 'system', 'content': 'S'}\n {'role': 'user', 'content': 'Who?'}]",
        "array([{'content': 'Who?', 'role': 'user'}], dtype=object)",
        '[{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]',
        '[{"role": "user", "content": "Who?"',
    ],
)
def test_text_that_starts_like_a_conversation_and_is_none_is_refused(text):
    with refused("conversation-unreadable", ValueError, names=("JSON",)):
        as_question(text)


def test_other_text_in_brackets_is_a_question():
    for text in ("[{'name': 'role'}] is what?", "[1, 2] has which role?", "{'role': 3}"):
        assert as_question(text).text == text


TOOLS_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo", "unit": None}])
@pytest.mark.parametrize("content", [None, "", "I look."])
def test_tool_calls_of_earlier_turns_stay_in_the_prompt(arguments, content):
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    conversation = [
        {"role": "user", "content": "Rain?", "tool_calls": None},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": "wet", "name": "weather"},
        {"role": "user", "content": "And now?", "tool_calls": []},
    ]
    prompt, _ = built(conversation, byte_tokenizer(TOOLS_TEMPLATE))
    assert prompt == (
        f'<user>Rain?</user><assistant>{content or ""}[weather {{"city": "Oslo"}}]</assistant>'
        "<tool>wet</tool><user>And now?</user><assistant>"
    )
    with refused("turns-lost", names=("tool calls",)):
        built(conversation, CHAT)
    with refused("tool-calls-without-template"):
        built(conversation, PLAIN)


LONG_SYSTEM = "You are a careful assistant."
LOSING = "{{% for m in messages if {kept} %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endfor %}}A:"


@pytest.mark.parametrize(
    ("kept", "role", "key"),
    [
        ("m.role != 'system'", "system", "data.system_prompt"),
        ("m == messages[0]", "user", "data.prompt_format"),
        ("m.role != 'assistant'", "assistant", "data.train"),
        ("m.role == 'human'", "system", "data.system_prompt"),
    ],
)
def test_a_template_that_leaves_out_a_turn_is_refused(kept, role, key):
    conversation = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2?"},
    ]
    system = LONG_SYSTEM
    if kept == "m.role != 'assistant'":
        system = ""
    if kept == "m == messages[0]":
        conversation = conversation[-1:]
    with refused("turns-lost", names=(f"role {role}", key)):
        built(conversation, byte_tokenizer(LOSING.format(kept=kept)), system_prompt=system)


def test_a_template_may_shorten_or_rewrite_turns():
    rewriting = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] | upper }}"
        "{% endfor %}"
    )
    conversation = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>1 and 1</think>two"},
        {"role": "user", "content": "Are you sure about this?"},
    ]
    prompt, _ = built(conversation, byte_tokenizer(rewriting))
    assert prompt == "<user>1+1?<assistant>TWO<user>ARE YOU SURE ABOUT THIS?"


def test_a_template_that_rejects_the_order_of_roles_is_not_about_a_system_prompt():
    alternating = "{% if messages | length > 1 %}{{ raise_exception('must alternate') }}{% endif %}"
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with refused("template-refused", names=("must alternate", "data.train")):
        built(turns, byte_tokenizer(alternating))


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"city": None}}}
SHOWS_TOOLS = "{% for tool in tools %}[{{ tool.function | tojson }}]{% endfor %}" + TOOLS_TEMPLATE


@pytest.mark.parametrize("value", [[WEATHER], json.dumps([WEATHER])])
def test_the_column_tools_is_given_to_the_template(value):
    question = replace(as_question("Rain?"), tools=as_tools(value))
    builder = PromptBuilder(TASKS["custom"], DataConfig(task="custom"), byte_tokenizer(SHOWS_TOOLS))
    prompt, _ = builder.build(question)
    assert prompt == '[{"name": "weather", "parameters": {}}]<user>Rain?</user><assistant>'
    with refused("turns-lost", names=("tools",)):
        PromptBuilder(TASKS["custom"], DataConfig(task="custom"), CHAT).build(question)
    with refused("tool-calls-without-template"):
        PromptBuilder(TASKS["custom"], DataConfig(task="custom"), PLAIN).build(question)


@pytest.mark.parametrize("value", [None, "hammer, saw", ["hammer"], [], 3, '{"name": "saw"}'])
def test_a_column_tools_of_something_else_is_ignored(value):
    assert as_tools(value) == ()


def test_a_template_that_drops_the_answers_of_tools_is_refused():
    without_tools = TOOLS_TEMPLATE.replace(
        "{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}"
    )
    conversation = [
        {"role": "user", "content": "Rain?"},
        {"role": "tool", "content": "wet"},
        {"role": "user", "content": "So?"},
    ]
    with refused("turns-lost", names=("role tool",)):
        built(conversation, byte_tokenizer(without_tools))
