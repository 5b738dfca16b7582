"""The embedded model's tokenizer, loaded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferscale_server.config import load_config
from inferscale_server.models import prepare_generator
from inferscale_server.tokens import LineTokenizer

torch.set_num_threads(1)  # tensors here are tiny, and the machine may be busy


@pytest.fixture(scope="session")
def real_tokenizer() -> Any:
    """SmolLM2's, as transformers loads it."""
    from transformers import PreTrainedTokenizerFast  # AutoTokenizer takes 20 s to import

    return PreTrainedTokenizerFast.from_pretrained(prepare_generator(load_config({}).cache_path, lambda line: None))


@pytest.fixture(scope="session")
def tokenize(real_tokenizer: Any) -> LineTokenizer:
    """Our tokenizer of memory lines around the real one."""
    return LineTokenizer(real_tokenizer)
