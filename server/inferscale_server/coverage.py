"""How much of a text a tokenizer knows: what is [UNK] to it, or spelled letter by letter, no vector can stand for.

Knows: tokenizers of the `tokenizers` package. Refuses to know: models and facts. Safe to use from any thread: it has a
copy of the tokenizer to itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

MAX_CHARS = 2_000
"""What a longer text begins with is taken for the whole."""


class Coverage:
    """The vocabulary of one embedding model."""

    def __init__(self, tokenizer: Any, unknown: str | None) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer`, which is copied; `unknown` its token for what it does not know."""
        copy: Tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        copy.no_truncation()
        copy.no_padding()
        self._tokenizer = copy
        self._unknown = None if unknown is None else copy.token_to_id(unknown)
        # A byte or sentence-piece vocabulary has single letters that mean something; in WordPiece they are spelling.
        self._spells = type(copy.model).__name__ == "WordPiece"

    def share(self, text: str) -> float:
        """The share of the text's characters that lie in words of the vocabulary, 0 … 1; 1 for a text without any."""
        text = text[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")
        if text.isascii():
            return 1.0
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        lengths = [end - start for start, end in encoding.offsets]
        foreign = self._foreign(encoding, text)
        return 1 - sum(length for length, is_foreign in zip(lengths, foreign, strict=True) if is_foreign) / max(
            sum(lengths), 1
        )

    def _foreign(self, encoding: Encoding, text: str) -> list[bool]:
        """For each token: is it unknown, or a letter of a word that is spelled out? Digits are always spelled out."""
        tokens_in = Counter(encoding.word_ids)
        return [
            token == self._unknown
            or (self._spells and end - start == 1 and tokens_in[word] > 1 and not text[start:end].isascii())
            for token, word, (start, end) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True)
        ]
