"""Byte-level tokenizers made on the spot: with or without BOS token, with or without chat
template.
"""

from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from trainer.policy.random_model import byte_level_tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</{{ "
    "message['role'] }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% "
    "endif %}" + CHAT_TEMPLATE
)


def byte_tokenizer(chat_template: str | None = None, bos: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, ``<s>`` and ``</s>`` besides."""
    tokenizer = byte_level_tokenizer()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )
