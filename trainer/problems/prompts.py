"""Prompt construction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rewards.limits import memory, processor_time
from trainer.config.data import DataConfig
from trainer.errors import ConfigError, first_line
from trainer.problems.tasks import Task

_CONTROL_MARKS = (
    "<|im_start|>",
    "<|start_header_id|>",
    "<|begin_of_text|>",
    "[INST]",
    "<start_of_turn>",
)
_TEMPLATE_LIMIT_S = 5.0  # a normal template takes a millisecond
_TEMPLATE_LIMIT_MIB = 1024
_MAX_PROMPT_CHARS = 1 << 20


@dataclass(frozen=True)
class Question:
    """A question: a conversation, or a text that already contains chat template markers."""

    messages: tuple[Mapping[str, str], ...]  # each with role and content

    @property
    def text(self) -> str:
        """Content of the last message."""
        return self.messages[-1]["content"]

    @property
    def templated(self) -> bool:
        """Whether a chat template was already applied to the text."""
        return len(self.messages) == 1 and any(mark in self.text for mark in _CONTROL_MARKS)


def as_question(value: object) -> Question:
    """Convert a column value (text or a list of chat messages) to a question.

    Raises:
        ValueError: neither.
    """
    if isinstance(value, str):
        return Question(({"role": "user", "content": value},))
    if isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
        messages = tuple({key: item.get(key) for key in ("role", "content")} for item in value)
        if all(
            isinstance(text, str) and text.strip()
            for message in messages
            for text in message.values()
        ):
            return Question(messages)
    raise ValueError("a prompt must be text or a list of chat messages with role and content")


def build_prompt(
    question: Question, task: Task, data: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, str]:
    """Return prompt and prefill.

    If the prompt already ends in the prefill (the published Knights-and-Knaves prompts end in
    ``<think>``), it is removed from the prompt, because the policy reads prompt + prefill and the
    reward reads prefill + completion.

    Raises:
        ConfigError: no usable chat template, or a second template for an already templated prompt.
    """
    prefill = task.prefill if data.prefill is None else data.prefill
    if question.templated:
        if data.prompt_format == "chat" or data.prompt_template is not None:
            raise ConfigError(
                "a chat template was already applied to the data's prompts",
                "data.prompt_format, data.prompt_template",
                "set data.prompt_format=raw, or set columns.prompt to a column with the "
                "plain question",
                key="data.prompt_format",
                code="already-templated",
            )
        prompt = question.text
    elif data.prompt_format == "chat" or (data.prompt_format == "auto" and tokenizer.chat_template):
        prompt = _chat_prompt(question, task, data, tokenizer)
    else:
        prompt = _raw_prompt(question, task, data)
    if prefill and prompt.rstrip().endswith(prefill):
        prompt = prompt.rstrip().removesuffix(prefill)
    return prompt, prefill


def check_template(data: DataConfig) -> None:
    """Raise if the prompt template does not contain {question}.

    Raises:
        ConfigError: no ``{question}`` in it.
    """
    if data.prompt_template is not None and "{question}" not in data.prompt_template:
        raise ConfigError(
            "the prompt template has no {question}",
            "data.prompt_template",
            "write {question} where it belongs",
            key="data.prompt_template",
            code="template-no-question",
        )


def _user_message(question: Question, task: Task, data: DataConfig) -> str:
    if data.prompt_template is not None:
        return data.prompt_template.replace("{question}", question.text)
    return task.ask(question.text)


def _raw_prompt(question: Question, task: Task, data: DataConfig) -> str:
    if data.prompt_template is not None:
        return _user_message(question, task, data)
    system = task.system_prompt if data.system_prompt is None else data.system_prompt
    before = [message["content"] for message in question.messages[:-1]]
    asked = "\n\n".join([*before, _user_message(question, task, data)])
    if "{system}" not in task.raw_template and system:
        asked = f"{system}\n\n{asked}"
    return task.raw_template.replace("{system}", system).replace("{question}", asked)


def _chat_prompt(
    question: Question, task: Task, data: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            "the tokenizer has no chat template",
            "data.prompt_format",
            "set data.prompt_format=raw",
            key="data.prompt_format",
            code="no-chat-template",
        )
    has_system = question.messages[0]["role"] == "system"
    system = task.system_prompt if data.system_prompt is None else data.system_prompt
    messages: list[Mapping[str, str]] = [*question.messages[:-1]]
    if has_system and data.system_prompt is not None:
        messages.pop(0)
    if system and not (has_system and data.system_prompt is None):
        messages.insert(0, {"role": "system", "content": system})
    messages.append({"role": "user", "content": _user_message(question, task, data)})
    try:
        with processor_time(_TEMPLATE_LIMIT_S), memory(_TEMPLATE_LIMIT_MIB):
            prompt = str(
                tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
    except Exception as error:  # Jinja templates can raise any exception
        if type(error) is TemplateError:  # from the template's raise_exception
            raise ConfigError(
                f"the tokenizer's chat template rejected the prompt: {error}",
                "data.system_prompt",
                'models without a system role need data.system_prompt=""',
                key="data.system_prompt",
                code="template-refused",
            ) from error
        raise _broken_template(f"{type(error).__name__}: {first_line(error)}", tokenizer) from error
    if not prompt.strip() or len(prompt) > _MAX_PROMPT_CHARS:
        raise _broken_template(f"it produced a prompt of {len(prompt)} characters", tokenizer)
    return prompt


def _broken_template(fault: str, tokenizer: PreTrainedTokenizerBase) -> ConfigError:
    return ConfigError(
        f"the tokenizer's chat template is broken: {fault}",
        f"chat_template of {tokenizer.name_or_path}",
        "repair it (tokenizer_config.json or chat_template.jinja), or set data.prompt_format=raw",
        code="template-broken",
    )
