"""Prompt construction."""

import ast
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from loptune.errors import ConfigError
from rewards.errors import CodedValueError
from trainer.config.data import DataConfig
from trainer.problems.chat_template import (
    FIXED_DATE,
    ChatTemplate,
    Message,
    Tool,
    open_tag,
    published_template,
)
from trainer.problems.tasks import Task

_MAX_JSON_CHARS = 1 << 20
# The start of a list of messages with role and content, also in the notation that NumPy prints.
_DAMAGED_CONVERSATION = re.compile(
    r"""(?s)\s*(array\()?\[\s*\{\s*['"](role['"]\s*:.*['"]content|content['"]\s*:.*['"]role)['"]\s*:"""
)
_NAMES_FUNCTION = {"function", "name"}  # a tool's description has one of these keys

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """A question as a conversation. Each message has role and content, and may have more, such as
    tool_calls.
    """

    messages: tuple[Message, ...]
    # start of the assistant's answer, which the completion continues
    prefill: str = ""
    # whether the conversation was written as text in JSON or Python notation
    from_text: bool = False
    # functions that the assistant may call
    tools: tuple[Tool, ...] = ()

    @property
    def text(self) -> str:
        """Content of the last message."""
        return str(self.messages[-1]["content"])


class LastTurnError(ValueError):
    """The last turn of a conversation is not the user's. Arguments: the problem, the fix."""


def as_question(value: object) -> Question:
    """Convert a column value (text or a list of chat messages) to a question.

    Text that contains a list of chat messages in JSON or Python notation, as in CSV files, is read
    as that list.

    Raises:
        ValueError: the value is neither text nor such a list, or is text that looks like a list but
            cannot be read.
    """
    if isinstance(value, str):
        messages = _messages_in(value)
        if messages is not None:
            return Question(messages, from_text=True)
        if _DAMAGED_CONVERSATION.match(value):
            raise CodedValueError(
                "the prompt starts like a list of chat messages, but is not valid JSON or Python "
                "with a role and text in each message; NumPy arrays written to CSV lack commas",
                code="conversation-unreadable",
            )
        return Question(({"role": "user", "content": value},))
    messages = _as_messages(value)
    if messages is None:
        raise CodedValueError(
            "a prompt must be text or a list of chat messages, each with a role and with text as "
            "content",
            code="invalid-prompt",
        )
    return Question(messages)


def as_tools(value: object) -> tuple[Tool, ...]:
    """Return the function descriptions in a row's ``tools`` column, which may be JSON text; empty
    if it contains anything else.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list):
        return ()
    tools = [_without_nulls(tool) for tool in value]
    are_tools = all(isinstance(tool, Mapping) and _NAMES_FUNCTION & tool.keys() for tool in tools)
    return tuple(tools) if are_tools else ()


def ending_with_user(question: Question, last_assistant: str) -> Question:
    """Return the question with the user's message last.

    ``last_assistant`` selects the treatment of an assistant's last turn: ``refuse``, ``drop`` or
    ``continue``, which makes it the start of every completion.

    Raises:
        LastTurnError: the last turn is not the user's; the message suggests a fix.
    """
    role = question.messages[-1]["role"]
    if role == "user":
        return question
    before = question.messages[:-1]
    if role == "assistant" and last_assistant != "refuse":
        if not before or before[-1]["role"] != "user":
            raise LastTurnError(
                "no user turn comes before the assistant's last turn",
                "add the question as a user turn",
            )
        prefill = question.text if last_assistant == "continue" else ""
        return replace(question, messages=before, prefill=prefill)
    if role == "assistant":
        raise LastTurnError(
            "the conversation ends with the assistant's turn, which would give the answer away",
            "set data.last_assistant=drop to leave out such turns, or "
            "data.last_assistant=continue if completions should continue them",
        )
    raise LastTurnError(
        f"the conversation ends with a turn of role {role}",
        "end it with a user turn, which the model answers",
    )


class PromptBuilder:
    """Builds the prompts of a task for a model, and counts unusual prompts for `report`.
    Errors name ``section``, the key of the data in the configuration, and ``format_key``, the key
    of its prompt format.

    Raises:
        ConfigError: ``data.chat_template_kwargs`` is set, but no chat template is used.
    """

    def __init__(
        self,
        task: Task,
        data: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        section: str = "data.train",
        format_key: str = "data.prompt_format",
    ) -> None:
        self._task = task
        self._section = section
        self._format_key = format_key
        self._data = data
        self._tokenizer = tokenizer
        self._built = 0
        self._templated = 0
        self._from_text = 0
        if not self._uses_template and data.chat_template_kwargs:
            raise ConfigError(
                "no chat template is used, so its arguments would change nothing",
                "data.chat_template_kwargs",
                "remove them, or use a model that has a chat template",
                key="data.chat_template_kwargs",
                code="template-argument-unused",
            )

    def build(self, question: Question) -> tuple[str, str]:
        """Return prompt and prefill of a question whose last message is the user's.

        The policy reads prompt + prefill and the reward reads prefill + completion. The prompt may
        already start the answer, for example with ``<think>`` at the end of a chat template or of a
        published prompt. That start therefore becomes part of the prefill.

        Raises:
            ConfigError: the tokenizer has no usable template, or the template rejects the question,
                leaves out a part of it, or would be applied to an already templated prompt; or the
                question has tools, but no template is used.
        """
        self._built += 1
        self._from_text += question.from_text
        wanted = self._task.prefill if self._data.prefill is None else self._data.prefill
        wanted += question.prefill
        if self._is_templated(question):
            self._templated += 1
            return split_prefill(question.text, open_tag(question.text), wanted)
        if self._uses_template:
            messages = self._messages(question)
            prompt = self._template.render(messages, tools=question.tools)
            self._template.check_turns(messages, prompt, question.tools)
            opening = self._template.opening
            if not prompt.endswith(opening):  # the template depends on the conversation
                opening = open_tag(prompt)
            return split_prefill(prompt, opening, wanted)
        prompt = self._raw_prompt(question)
        return split_prefill(prompt, open_tag(prompt), wanted)

    def report(self, source: str) -> None:
        """Warn about properties of a source's prompts that may be unintended."""
        if self._templated:
            _log.warning(
                "%s: %d of %d prompts already contain a chat template and are used as they are",
                source,
                self._templated,
                self._built,
            )
        if self._from_text:
            _log.warning(
                "%s: %d of %d prompts are serialized conversations and are parsed as such",
                source,
                self._from_text,
                self._built,
            )
        if self._uses_template and self._template.reads_clock:
            _log.warning(
                "the chat template uses the current date; it is fixed to %s so that prompts are "
                "reproducible",
                FIXED_DATE.strftime("%d %b %Y"),
            )

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer, self._data.chat_template_kwargs, self._section)

    @property
    def _uses_template(self) -> bool:
        if self._data.prompt_format == "auto":
            return bool(self._tokenizer.chat_template)
        return self._data.prompt_format == "chat"

    def _is_templated(self, question: Question) -> bool:
        if len(question.messages) > 1:
            return False
        rendered = published_template(question.text)
        if self._tokenizer.chat_template and not rendered:
            rendered = self._own_template.has_rendered(question.text)
        if rendered and (
            self._data.prompt_format == "chat" or self._data.prompt_template is not None
        ):
            raise ConfigError(
                "a chat template was already applied to the data's prompts",
                f"{self._format_key}, data.prompt_template",
                f"set {self._format_key}=raw, or set columns.prompt to a column with the "
                "plain question",
                key=self._format_key,
                code="already-templated",
            )
        return rendered

    @cached_property
    def _own_template(self) -> ChatTemplate:
        """The template for inspecting prompts, even if `prompt_format=raw` does not apply it."""
        if self._uses_template:
            return self._template
        return ChatTemplate(self._tokenizer, {}, self._section)

    def _messages(self, question: Question) -> list[Message]:
        """Return the conversation with the configured system prompt and the task's question."""
        messages = list(question.messages)
        has_system = messages[0]["role"] == "system"
        system = self._data.system_prompt
        if has_system and system is not None:
            messages.pop(0)
        elif not has_system and system is None:
            system = self._task.system_prompt
        if system:
            messages.insert(0, {"role": "system", "content": system})
        if self._data.prompt_template is not None:
            user_text = self._data.prompt_template.replace("{question}", question.text)
        else:
            user_text = self._task.ask(question.text)
        messages[-1] = {**messages[-1], "content": user_text}
        return messages

    def _raw_prompt(self, question: Question) -> str:
        messages = self._messages(question)
        if question.tools or any("tool_calls" in message for message in messages):
            raise ConfigError(
                "the data has tools or tool calls, which need a chat template",
                self._format_key,
                "use a model that has a chat template, or remove the tools column and the tool "
                "calls from the data",
                key=self._format_key,
                code="tool-calls-without-template",
            )
        system = ""
        if messages[0]["role"] == "system":
            system = messages.pop(0)["content"]
        user_text = "\n\n".join(message["content"] for message in messages)
        form = self._task.raw_template
        if self._data.prompt_template is not None:
            form = "{question}"
        if "{system}" not in form and system:
            user_text = f"{system}\n\n{user_text}"
        return form.replace("{system}", system).replace("{question}", user_text)


def split_prefill(prompt: str, opening: str, wanted: str) -> tuple[str, str]:
    """Return the prompt without ``opening``, and the prefill: ``opening`` followed by ``wanted``.

    ``opening`` is the end of the prompt that belongs to the answer. A wanted prefill that the
    prompt already ends with, except for whitespace, is not repeated; the prompt's whitespace is
    kept.
    """
    core = wanted.strip()
    if core and not opening and prompt.rstrip().endswith(wanted.rstrip()):
        start = prompt.rstrip().rindex(wanted.rstrip())
        opening = prompt[start:]
    prompt = prompt.removesuffix(opening) if opening else prompt
    if not core or opening.startswith(wanted) or opening.strip() == core:
        return prompt, opening or wanted
    if opening.strip() and wanted.startswith(opening.rstrip()):
        return prompt, wanted
    return prompt, opening + wanted


def check_template(data: DataConfig) -> None:
    """Raise if the prompt template does not contain {question}.

    Raises:
        ConfigError: the template has no ``{question}``.
    """
    if data.prompt_template is not None and "{question}" not in data.prompt_template:
        raise ConfigError(
            "the prompt template has no {question}",
            "data.prompt_template",
            "add {question} to the template",
            key="data.prompt_template",
            code="template-no-question",
        )


def _as_messages(value: object) -> tuple[Message, ...] | None:
    """Return a value as a list of chat messages, or None if it is not one."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return None
    messages = []
    for item in value:
        message = _as_message(item)
        if message is None:
            return None
        messages.append(message)
    return tuple(messages)


def _as_message(item: object) -> Message | None:
    """Return a value as a chat message with all keys that a chat template may use, or None if it is
    not one. A null means that the message has no such key: Arrow gives every message the keys of
    all messages.
    """
    if not isinstance(item, Mapping):
        return None
    role = item.get("role")
    content = item.get("content")
    calls = item.get("tool_calls")
    if content is None and calls:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        return None
    if not role.strip() or not (content.strip() or calls):
        return None
    message: dict[str, Any] = {"role": role, "content": content}
    for key, given in item.items():
        if key not in message and given not in (None, [], ""):
            message[key] = given
    if calls:
        message["tool_calls"] = [_as_tool_call(call) for call in calls]
    return message


def _without_nulls(value: Any) -> Any:
    """Return a value without the nulls in its mappings, which Arrow adds."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(given) for key, given in value.items() if given is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _as_tool_call(call: Any) -> Any:
    """Return a tool call without nulls. Its arguments are a mapping, as chat templates expect, even
    if they were JSON text, as in OpenAI's format.
    """
    if isinstance(call, Mapping):
        return {key: _as_tool_call(given) for key, given in call.items() if given is not None} | (
            _parsed_arguments(call)
        )
    if isinstance(call, list):
        return [_as_tool_call(item) for item in call]
    return call


def _parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return {"arguments": parsed} if isinstance(parsed, dict) else {}


def _messages_in(text: str) -> tuple[Message, ...] | None:
    """Return the chat messages that a string contains in JSON or Python notation, or None."""
    stripped = text.strip()
    if stripped[:1] not in ("[", "{") or len(stripped) > _MAX_JSON_CHARS or "role" not in stripped:
        return None
    value = _parsed_literal(stripped)
    if isinstance(value, Mapping):
        return _as_messages([value])
    return _as_messages(value)


def _parsed_literal(text: str) -> object:
    """Return the value that a string holds in JSON or Python notation; None if it holds none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass  # it may be the repr of a Python value
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
