"""The tokenizer as its authors published it: ``tokenizer.json``, read by the tokenizers library.

transformers may build a different tokenizer from the same folder: it takes the class from
``tokenizer_config.json`` or from the model's type, and some classes replace parts of
``tokenizer.json``. For some models the resulting tokenizer drops every space. Therefore the
tokenizer used for training is compared with the published one.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file

FILE = "tokenizer.json"
# spaces, line breaks, accents that a normalizer may compose, digits, code, other scripts
SAMPLES = (
    "What is 1 + 1? It's 2, isn't it?",
    "  two  spaces\n\n\tand a tab ",
    "e\u0301 and \u00e9: 12 + 3 = 15.50, 1,000",
    "def f(x):\n    return {'a': [x, 2]}  # \\boxed{42} <b>",
    "日本語 العربية ελ 😀",
)


def published_tokenizer(source: str, revision: str | None = None) -> Tokenizer | None:
    """Return the tokenizer of a folder's or Hub repository's ``tokenizer.json``, without truncation
    and padding; None if there is no such file.
    """
    file = Path(source) / FILE
    if not Path(source).is_dir():
        found = cached_file(
            source, FILE, revision=revision, _raise_exceptions_for_missing_entries=False
        )
        if found is None:
            return None
        file = Path(found)
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def difference(
    tokenizer: PreTrainedTokenizerBase, published: Tokenizer, texts: Iterable[str]
) -> str | None:
    """Return the first difference between the two tokenizers, in the tokens of a string or in their
    decoding, or None.
    """
    for text in texts:
        ids = list(tokenizer.encode(text, add_special_tokens=False))
        expected = list(published.encode(text, add_special_tokens=False).ids)
        if ids != expected:
            read = published.decode(ids, skip_special_tokens=False)
            return f"{_shown(text)} becomes the tokens of {_shown(read)}"
        decoded = decode(tokenizer, ids)
        right = published.decode(ids, skip_special_tokens=False)
        if decoded != right:
            return f"the tokens of {_shown(right)} are decoded as {_shown(decoded)}"
    return None


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the text of token ids, special tokens included, without cleaning up spaces."""
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def _shown(text: str, characters: int = 60) -> str:
    shown = text if len(text) <= characters else text[: characters - 3] + "..."
    # accents written as separate characters look like composed ones
    return repr(shown) if unicodedata.is_normalized("NFC", shown) else ascii(shown)
