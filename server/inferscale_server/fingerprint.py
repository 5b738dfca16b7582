"""The fingerprint: what chunk KV depends on beside its tokens. Another value means that the KV is of another model.

Pure; refuses to read files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

CODEC_VERSION = 1
"""Raise when the meaning of slab rows changes."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """All that goes in. `weights` identifies revision and bytes, `words` the prompt's fixed wording, `rotary` the
    tables that the model rotates with, which follow from the longest context too, `codec` how files are quantised."""

    weights: str
    config: Mapping[str, object]
    tokenizer: str
    chat_template: str
    dtype: str
    kv_cache_dtype: str
    tensor_parallel: int
    adapter: str
    recipe: str
    words: str
    rotary: str = ""
    codec: str = "none"
    codec_version: int = CODEC_VERSION


def fingerprint(ingredients: Ingredients) -> str:
    """64 hex characters; any change of any ingredient changes it."""
    text = json.dumps(asdict(ingredients), sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(b"inferscale-fingerprint" + text.encode()).hexdigest()
