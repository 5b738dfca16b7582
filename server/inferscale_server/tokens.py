"""Tokens of memory lines: each fact alone, with special-token strings taken as plain text.

So fact boundaries never merge, the same ids stand in every prompt, and a fact's `<|im_end|>` never becomes a control
token (as message text it would). Knows the tokenizer; refuses to know templates.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import Any

from inferscale_server.types import Owner

CACHE_TOKENS = 4_000_000
"""Of all lines in the cache: about 150 MB of numbers, and facts' texts beside them."""
LINE_TOKENS = 16
"""Counted for each line beside its tokens: its text and its place."""


class LineTokenizer:
    """Text of one memory line -> token ids, cached for each owner. Deterministic.

    A cache that owners shared would answer faster to whoever guesses what another one's memory says.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._control = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
        self._control_strings = sorted(
            {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True
        )
        self._cache: OrderedDict[tuple[Owner, str], tuple[int, ...]] = OrderedDict()
        self._cached_tokens = 0

    def __call__(self, line: str, owner: Owner | None = None) -> tuple[int, ...]:
        """Ids of the line; never a control token's. Without an owner, whose line it is, nothing is cached."""
        if owner is None:
            return self._encode(line)
        ids = self._cache.get((owner, line))
        if ids is None:
            ids = self._encode(line)
            self._cache[owner, line] = ids
            self._cached_tokens += len(ids) + LINE_TOKENS
            while self._cached_tokens > CACHE_TOKENS:
                self._cached_tokens -= len(self._cache.popitem(last=False)[1]) + LINE_TOKENS
        else:
            self._cache.move_to_end((owner, line))
        return ids

    def knows(self, line: str, owner: Owner) -> bool:
        """Are the line's ids at hand?"""
        return (owner, line) in self._cache

    @property
    def chat_template(self) -> object:
        """The tokenizer's own chat template."""
        return self._tokenizer.chat_template

    def digest(self) -> str:
        """Names the vocabulary and how it splits text."""
        probe = "Zürich, 8 May 2023: naïve café—它们 <b>1,000</b>\n\tdon't"
        vocabulary = self._tokenizer.get_vocab()
        words = sorted(vocabulary)  # words and ids apart: pairs of a large vocabulary take a second to sort and print
        digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass"))
        digest.update(array("q", map(vocabulary.__getitem__, words)))
        digest.update(repr(self._tokenizer(probe, add_special_tokens=False)["input_ids"]).encode())
        return digest.hexdigest()

    def template_text(self, text: str) -> tuple[int, ...]:
        """Ids of rendered template text, where control tokens are meant."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def _encode(self, line: str) -> tuple[int, ...]:
        ids = tuple(self._tokenizer(line, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        if self._control.isdisjoint(ids):
            return ids
        ids = tuple(self._tokenizer(self.harmless(line), add_special_tokens=False)["input_ids"])
        return tuple(token for token in ids if token not in self._control)

    def harmless(self, line: str) -> str:
        """The line with a blank inside every control token's string, for where they cannot be split."""
        for string in self._control_strings:
            if len(string) > 1:
                line = line.replace(string, f"{string[0]} {string[1:]}")
        return line
