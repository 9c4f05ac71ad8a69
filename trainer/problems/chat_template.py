"""A model's chat template: render conversations within limits, and recognize rendered prompts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from loptune.errors import ConfigError, described
from loptune.yaml_document import nearest
from rewards.limits import cpu_time_limit, memory

# role, content and other keys that the template may use, such as tool_calls
Message = Mapping[str, Any]
Tool = Mapping[str, Any]  # description of a function that the assistant may call, a JSON schema

_TEMPLATE_LIMIT_S = 5.0  # a normal template takes a millisecond
_TEMPLATE_LIMIT_MIB = 1024
_MAX_PROMPT_CHARS = 1 << 20
# Llama 3's templates use this date if they do not get one.
FIXED_DATE = datetime(2024, 7, 26)
# Arguments of apply_chat_template that are not passed on to the template.
_RESERVED = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "messages",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tools",
)
# Content of at least this many characters cannot be in a prompt by chance.
_DISTINCT_CHARS = 20
_QUESTION = "QUESTION-7f3a"
_ANSWER = "ANSWER-7f3a"
_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")  # <|im_start|>, <start_of_turn>, [INST]
_OPEN_TAG = re.compile(r"<(?P<tag>[A-Za-z_]+)>\s*\Z")
_ROLES = ("assistant", "bot", "human", "model", "system", "tool", "user", "s", "bos")


class _FixedClock:
    """A clock for chat templates that always returns `FIXED_DATE`."""

    def __init__(self) -> None:
        self.was_read = False

    def now(self) -> datetime:
        """Return `FIXED_DATE`."""
        self.was_read = True
        return FIXED_DATE

    @contextmanager
    def of_templates(self) -> Iterator[None]:
        """Replace the clock behind ``strftime_now``, which templates call, for the duration of the
        block. transformers does not let callers pass another function to a template.
        """
        clock = vars(chat_template_utils)["datetime"]
        vars(chat_template_utils)["datetime"] = self
        try:
            yield
        finally:
            vars(chat_template_utils)["datetime"] = clock


class ChatTemplate:
    """The chat template of a tokenizer with the configured ``data.chat_template_kwargs``.
    ``section`` is the key of the data in the configuration, which errors about the data name.

    The clock that a template may read is fixed at `FIXED_DATE`, so that prompts are the same at
    every load.

    Raises:
        ConfigError: the tokenizer has no template, or an argument is not used by the template or is
            set by loptune.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        arguments: Mapping[str, Any],
        section: str = "data.train",
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                "the tokenizer has no chat template",
                "data.prompt_format",
                "set data.prompt_format=raw",
                key="data.prompt_format",
                code="no-chat-template",
            )
        self._tokenizer = tokenizer
        self._arguments = dict(arguments)
        self._section = section
        self._check_arguments()
        self._clock = _FixedClock()

    @property
    def reads_clock(self) -> bool:
        """Whether the template has read the time."""
        return self._clock.was_read

    def render(
        self,
        messages: Sequence[Message],
        generation_prompt: bool = True,
        tools: Sequence[Tool] = (),
    ) -> str:
        """Return the conversation as text, with the start of the assistant's turn if
        ``generation_prompt``, and the descriptions of tools that the assistant may call.

        Raises:
            ConfigError: the template rejects the conversation, or is broken.
        """
        try:
            with (
                cpu_time_limit(_TEMPLATE_LIMIT_S),
                memory(_TEMPLATE_LIMIT_MIB),
                self._clock.of_templates(),
            ):
                prompt = str(
                    self._tokenizer.apply_chat_template(
                        [dict(message) for message in messages],
                        tools=list(tools) or None,
                        tokenize=False,
                        add_generation_prompt=generation_prompt,
                        **self._arguments,
                    )
                )
        except Exception as error:  # Jinja templates can raise any exception
            if type(error) is TemplateError:  # from the template's raise_exception
                raise self._rejected(messages, error) from error
            raise self._broken(described(error)) from error
        if not prompt.strip() or len(prompt) > _MAX_PROMPT_CHARS:
            raise self._broken(f"it produced a prompt of {len(prompt)} characters")
        return prompt

    def check_turns(
        self, messages: Sequence[Message], prompt: str, tools: Sequence[Tool] = ()
    ) -> None:
        """Check that the prompt, rendered from the messages and tools, contains all of them: a
        template leaves out what it does not support, such as a system prompt or tool calls.

        Raises:
            ConfigError: the prompt is the same without one of them.
        """
        if tools and self._try_render(messages, generation_prompt=True) == prompt:
            raise self._lost("the data's tools", "tool")
        for index, message in enumerate(messages):
            role = message["role"]
            content = message["content"].strip()
            changes: list[tuple[str, str, Message]] = []
            if "tool_calls" in message:
                without_calls = {key: message[key] for key in message if key != "tool_calls"}
                changes.append(("tool calls", "tool", without_calls))
            if content and (len(content) < _DISTINCT_CHARS or content not in prompt):
                with_answer = {**message, "content": _ANSWER}
                changes.append((f"turns of the role {role}", role, with_answer))
            for what, hint_for, changed in changes:
                others = [*messages[:index], changed, *messages[index + 1 :]]
                if self._try_render(others, generation_prompt=True, tools=tools) == prompt:
                    raise self._lost(what, hint_for)

    @cached_property
    def opening(self) -> str:
        """The text with which every prompt starts the assistant's message, such as ``<think>`` and
        a line break; empty for most models.

        It is the text after the assistant's role mark at the end of a prompt. An earlier turn of
        the assistant, which has the same role mark and no such text, shows where that mark ends.
        """
        question = {"role": "user", "content": _QUESTION}
        answer = {"role": "assistant", "content": _ANSWER}
        prompt = self._try_render([question], generation_prompt=True)
        conversation = self._try_render([question, answer, question], generation_prompt=False)
        before_answer, found, _ = conversation.partition(_ANSWER)
        if found and prompt.startswith(before_answer):
            return prompt.removeprefix(before_answer)
        return open_tag(prompt)

    @cached_property
    def ending(self) -> str:
        """The text that the template adds after an assistant's message, such as ``<|im_end|>`` and
        a line break; empty if it rejects a conversation.
        """
        question = {"role": "user", "content": _QUESTION}
        answer = {"role": "assistant", "content": _ANSWER}
        return self._try_render([question, answer], generation_prompt=False).partition(_ANSWER)[2]

    def has_rendered(self, text: str) -> bool:
        """Return whether the text is a prompt that this template has already rendered: it starts
        with a mark of the template and has the mark that ends the user's turn.
        """
        starts, end = self._marks
        start = text.lstrip().removeprefix(self._tokenizer.bos_token or "").lstrip()
        return bool(end) and end in text and start.startswith(starts)

    @cached_property
    def _marks(self) -> tuple[tuple[str, ...], str]:
        """The marks that can start a conversation, and the mark that ends the user's turn."""
        user = {"role": "user", "content": _QUESTION}
        system = {"role": "system", "content": _ANSWER}
        starts = set()
        end = ""
        for messages, content in (([user], _QUESTION), ([system, user], _ANSWER)):
            text = self._try_render(messages, generation_prompt=True)
            bos = self._tokenizer.bos_token or ""
            before, found, _ = text.removeprefix(bos).partition(content)
            if not found or not before.strip():
                continue
            mark = _MARK.match(before.lstrip())
            starts.add(mark[0] if mark else before.strip())
            after = text.partition(_QUESTION)[2].strip()
            mark = _MARK.match(after)
            end = mark[0] if mark else after
        return tuple(sorted(starts)), end

    def _try_render(
        self, messages: Sequence[Message], generation_prompt: bool, tools: Sequence[Tool] = ()
    ) -> str:
        """Return the conversation as text, or "" if the template rejects it."""
        try:
            return self.render(messages, generation_prompt, tools)
        except ConfigError:
            return ""

    def _check_arguments(self) -> None:
        template = str(self._tokenizer.chat_template)
        for name in self._arguments:
            if name in _RESERVED:
                raise ConfigError(
                    f"{name} is set by loptune, not by the configuration",
                    f"data.chat_template_kwargs.{name}",
                    "remove it; data.prompt_format decides whether the template is used",
                    key=f"data.chat_template_kwargs.{name}",
                    code="template-argument-reserved",
                )
            if not re.search(rf"\b{re.escape(name)}\b", template):
                names = sorted(set(re.findall(r"[a-z]+(?:_[a-z]+)+", template)))
                raise ConfigError(
                    f"the model's chat template does not use {name}",
                    f"data.chat_template_kwargs.{name}",
                    nearest(name, names),
                    key=f"data.chat_template_kwargs.{name}",
                    code="template-argument-unknown",
                )

    def _rejected(self, messages: Sequence[Message], error: Exception) -> ConfigError:
        """Return the error for a conversation that the template rejects on purpose."""
        key = self._section
        hint = "change the order of the roles in the data, or use another model"
        if any(message["role"] == "system" for message in messages):
            key = "data.system_prompt"
            hint = 'models without a system role need data.system_prompt=""'
        return ConfigError(
            f"the tokenizer's chat template rejected the prompt: {error}",
            key,
            hint,
            key=key,
            code="template-refused",
        )

    def _lost(self, what: str, role: str) -> ConfigError:
        """Return the error for a template that leaves out a part of the conversation."""
        key = self._section
        hint = "use a model whose chat template supports them, or remove these turns from the data"
        if role == "system":
            key = "data.system_prompt"
            hint = 'set data.system_prompt="", or use a model whose chat template has a system role'
        elif role == "user":
            key = "data.prompt_format"
            hint = "repair the template (tokenizer_config.json or chat_template.jinja), or set "
            hint += "data.prompt_format=raw"
        elif role == "tool":
            hint = "use a model whose chat template supports tools, or remove these turns and the "
            hint += "tools column from the data"
        return ConfigError(
            f"the tokenizer's chat template leaves out {what}",
            key,
            hint,
            key=key,
            code="turns-lost",
        )

    def _broken(self, fault: str) -> ConfigError:
        return ConfigError(
            f"the tokenizer's chat template is broken: {fault}",
            f"chat_template of {self._tokenizer.name_or_path}",
            "repair it (tokenizer_config.json or chat_template.jinja), or set "
            "data.prompt_format=raw",
            code="template-broken",
        )


def open_tag(prompt: str) -> str:
    """Return the unclosed tag at the end of the prompt with the whitespace after it, such as
    ``<think>`` and a line break, or an empty string.
    """
    match = _OPEN_TAG.search(prompt)
    if match is None or match["tag"].lower() in _ROLES:
        return ""
    return match[0]


# Marks of a prompt in a model family's chat format: its start, and other text that it must contain.
_PUBLISHED = (
    ("<|im_start|>", "<|im_end|>"),
    ("<|start_header_id|>", "<|eot_id|>"),
    ("<start_of_turn>", "<end_of_turn>"),
    ("<｜User｜>", "<｜Assistant｜>"),
    ("<|user|>", "<|assistant|>"),
    ("[INST]", "[/INST]"),
)
_PUBLISHED_BOS = ("<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<bos>", "<s>")


def published_template(text: str) -> bool:
    """Return whether the text is a rendered prompt of a well-known model family."""
    start = text.lstrip()
    for bos in _PUBLISHED_BOS:
        start = start.removeprefix(bos)
    start = start.lstrip()
    return any(start.startswith(begin) and end in text for begin, end in _PUBLISHED)
