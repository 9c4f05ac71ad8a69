"""What is sent and what is scored with the prompt forms of the models that people train.

The templates are written here in the published forms of Qwen2.5, Qwen3, Llama 3.1, Gemma 3,
DeepSeek-R1-Distill, Phi-4, Phi-3, SmolLM2 and Mistral 7B v0.3.
"""

import json

import pytest

from tests.refusals import refused
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.data import DataConfig, DatasetConfig
from trainer.problems.load import encode_prompt, load_problems


def chatml(default_system="", separator="\\n", after="\\n"):
    """Return a ChatML template that begins with a default system turn, if there is one."""
    default = (
        f"{{% if messages[0]['role'] != 'system' %}}{{{{ '<|im_start|>system{separator}"
        f"{default_system}<|im_end|>{after}' }}}}{{% endif %}}"
    )
    return (
        (default if default_system else "")
        + "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '"
        + separator
        + "' + m['content'] + '<|im_end|>"
        + after
        + "' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant"
        + separator
        + "' }}{% endif %}"
    )


QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
LLAMA3 = (
    "{% if not date_string is defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% else %}"
    "{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}"
    "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string "
    "+ '\\n\\n' }}{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}"
    "{% set messages = messages[1:] %}{% endif %}{{ '<|eot_id|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + "
    "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\\n\\n' %}{% set messages = messages[1:] %}"
    "{% else %}{% set first = '' %}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' + "
    "(first if loop.first else '') + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
R1_DISTILL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{% else %}"
    "{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}"
    "{% endif %}"
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + '[/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] + eos_token }}{% else %}{{ raise_exception('no system role') }}"
    "{% endif %}{% endfor %}"
)

# name -> template, prompt without the answer's beginning, and what it begins of the answer
PUBLISHED = {
    "qwen2.5": (
        chatml("You are Qwen."),
        "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "",
    ),
    "qwen3": (QWEN3, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n", ""),
    "llama3": (
        LLAMA3,
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "",
    ),
    "gemma3": (GEMMA3, "<s><start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n", ""),
    "r1-distill": (R1_DISTILL, "<s><｜User｜>Who?<｜Assistant｜>", "<think>\n"),
    "phi4": (
        chatml(separator="<|im_sep|>", after=""),
        "<|im_start|>user<|im_sep|>Who?<|im_end|><|im_start|>assistant<|im_sep|>",
        "",
    ),
    "phi3": (PHI3, "<|user|>\nWho?<|end|>\n<|assistant|>\n", ""),
    "smollm2": (
        chatml("You are a helpful AI assistant named SmolLM."),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM.<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n",
        "",
    ),
    "mistral": (MISTRAL, "<s>[INST] Who?[/INST]", ""),
}
NAMES = sorted(PUBLISHED)


def load(tmp_path, template, *prompts, **data):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": p, "answer": "1"}) + "\n" for p in prompts))
    config = DataConfig(task="custom", max_prompt_tokens=4000, **data)
    tokenizer = byte_tokenizer(template, bos=True)
    problems = load_problems(DatasetConfig(source=str(path)), config, tokenizer)
    return tokenizer, problems


@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_and_what_belongs_to_the_answer(tmp_path, name):
    template, prompt, opened = PUBLISHED[name]
    tokenizer, (problem,) = load(tmp_path, template, "Who?")
    assert (problem.prompt, problem.prefill) == (prompt, opened)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who?"}],
        tokenize=False,
        add_generation_prompt=True,
        date_string="26 Jul 2024",
    )
    assert problem.prompt + problem.prefill == rendered
    ids = encode_prompt(tokenizer, problem)
    assert ids.count(tokenizer.bos_token_id) == 1  # never twice, and never without


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefill", ["<think>", "<think>\n", "<think>\nFirst"])
def test_a_prefill_stands_once_before_the_answer(tmp_path, name, prefill):
    template, prompt, opened = PUBLISHED[name]
    _, (problem,) = load(tmp_path, template, "Who?", prefill=prefill)
    # the template's own form of the tag wins, because the model was trained on it
    scored = opened if opened and opened.startswith(prefill) else prefill
    assert (problem.prompt, problem.prefill) == (prompt, scored)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_the_template_has_rendered_are_not_rendered_again(tmp_path, name, caplog):
    template, prompt, opened = PUBLISHED[name]
    quoting = f"What does {prompt.strip()} mean?"
    _, (rendered, without_bos, question) = load(
        tmp_path, template, prompt + opened, prompt.removeprefix("<s>") + opened, quoting
    )
    assert (rendered.prompt, rendered.prefill) == (prompt, opened)
    assert without_bos.prompt == prompt.removeprefix("<s>")
    assert question.prompt != quoting and quoting in question.prompt
    assert "2 of 3 prompts" in caplog.text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", ["[INST]", "<|im_start|>", "<start_of_turn>", "<｜User｜>"])
def test_a_question_about_a_mark_is_a_question(tmp_path, name, other):
    template, prompt, opened = PUBLISHED[name]
    asked = f"{other} stands in the log. Why?"
    _, (problem,) = load(tmp_path, template, asked)
    assert problem.prompt == prompt.replace("Who?", asked)
    assert problem.prefill == opened


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ["assistant", "system", "tool"])
def test_a_turn_of_somebody_else_is_never_sent_as_the_users(tmp_path, name, role):
    turns = [{"role": "user", "content": "Who?"}, {"role": role, "content": "It is 42."}]
    with refused("last-turn-not-user", key="data.last_assistant") as caught:
        load(tmp_path, PUBLISHED[name][0], [turns[0]], turns)
    assert caught.value.where.endswith("rows.jsonl, row 2, column prompt")


@pytest.mark.parametrize("name", NAMES)
def test_an_assistants_last_turn_is_dropped_or_continued(tmp_path, name, caplog):
    template, prompt, opened = PUBLISHED[name]
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It is"}]
    _, (dropped,) = load(tmp_path, template, turns, last_assistant="drop")
    assert (dropped.prompt, dropped.prefill) == (prompt, opened)
    assert "1 of 1 conversations" in caplog.text
    _, (continued,) = load(tmp_path, template, turns, last_assistant="continue")
    assert (continued.prompt, continued.prefill) == (prompt, opened + "It is")


def test_the_switch_of_qwen3_gives_the_templates_own_prompt(tmp_path):
    off = {"enable_thinking": False}
    tokenizer, (problem,) = load(tmp_path, QWEN3, "Who?", chat_template_kwargs=off)
    assert problem.prefill == "<think>\n\n</think>\n\n"
    assert problem.prompt + problem.prefill == tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who?"}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )


def test_a_template_that_reads_the_clock_gives_one_prompt(tmp_path, caplog):
    clock = "{{ '[now ' + strftime_now('%H:%M:%S.%f') + ']' }}" + chatml()
    prompts = {load(tmp_path, clock, "Who?")[1][0].prompt for _ in range(3)}
    assert len(prompts) == 1
    assert "uses the current date" in caplog.text
    _, (dated,) = load(tmp_path, LLAMA3, "Who?", chat_template_kwargs={"date_string": "1 May 2025"})
    assert "Today Date: 1 May 2025" in dated.prompt


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"enable_thinkng": False}, "template-argument-unknown"),
        ({"tokenize": True}, "template-argument-reserved"),
        ({"add_generation_prompt": False}, "template-argument-reserved"),
    ],
)
def test_arguments_that_would_change_nothing_are_refused(tmp_path, arguments, code):
    name = next(iter(arguments))
    with refused(code, key=f"data.chat_template_kwargs.{name}"):
        load(tmp_path, QWEN3, "Who?", chat_template_kwargs=arguments)


@pytest.mark.parametrize("template", [None, QWEN3])
def test_arguments_without_a_template_are_refused(tmp_path, template):
    with refused("template-argument-unused", key="data.chat_template_kwargs"):
        load(
            tmp_path,
            template,
            "Who?",
            prompt_format="raw",
            chat_template_kwargs={"enable_thinking": False},
        )


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


@pytest.mark.parametrize("written", [json.dumps, repr, lambda turns: json.dumps(turns, indent=2)])
@pytest.mark.parametrize("name", ["qwen3", "r1-distill"])
def test_a_conversation_written_as_text_is_a_conversation(tmp_path, written, name, caplog):
    template = PUBLISHED[name][0]
    _, (as_text, as_list) = load(tmp_path, template, written(CONVERSATION), CONVERSATION)
    assert (as_text.prompt, as_text.problem_id) == (as_list.prompt, as_list.problem_id)
    assert "1 of 2 " in caplog.text


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", '[{"role": "user"}]', "[role"])
def test_other_text_in_brackets_stays_the_question(tmp_path, text):
    _, (problem,) = load(tmp_path, QWEN3, text)
    assert f"user\n{text}<|im_end|>" in problem.prompt


@pytest.mark.parametrize(
    ("data", "prompt"),
    [
        ({}, "Be brief.\n\na\n\nb\n\nQ: c\nA:"),
        ({"system_prompt": "Be long."}, "Be long.\n\na\n\nb\n\nQ: c\nA:"),
        ({"system_prompt": ""}, "a\n\nb\n\nQ: c\nA:"),
    ],
)
def test_a_prompt_template_keeps_what_came_before(tmp_path, data, prompt):
    _, (problem,) = load(tmp_path, None, CONVERSATION, prompt_template="Q: {question}\nA:", **data)
    assert problem.prompt == prompt


@pytest.mark.parametrize("end", ["<think>", "<think>\n", "<think>\n\n"])
def test_a_tag_that_raw_prompts_open_is_scored(tmp_path, end):
    _, (problem,) = load(tmp_path, None, f"Who?\n{end}")
    assert (problem.prompt, problem.prefill) == ("Who?\n", end)
