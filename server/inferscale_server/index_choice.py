"""Which index a configuration means."""

from __future__ import annotations

from functools import partial
from typing import Literal

from inferscale_server.ann import AnnIndex
from inferscale_server.errors import ConfigError
from inferscale_server.growing_index import GrowingIndex, MakeGraph
from inferscale_server.index import ExactIndex

IndexName = Literal["auto", "exact", "faiss", "cuvs"]

AUTO_GRAPH_FROM = 20_000
"""Vectors of one owner from which on a graph is worth its building: docs/index-backends.md."""
NAMED_GRAPH_FROM = 1_000
"""Whoever names a backend wants it, but below this a graph is slower than exact search."""


def make_index(name: IndexName) -> ExactIndex:
    """Graphs are built only once `start_building` was called.

    Raises ConfigError when a backend that is named is missing; "auto" takes what is there.
    """
    if name == "exact":
        return _growing(_torch_or_none(), AUTO_GRAPH_FROM)
    if name == "auto":
        return _growing(_cuvs_or_none() or _torch_or_none() or _faiss_or_none(), AUTO_GRAPH_FROM)
    if name == "cuvs":
        return _growing(_cuvs(), NAMED_GRAPH_FROM)
    graph = _faiss_or_none()
    if graph is None:
        raise ConfigError("option 'index': value 'faiss' needs the package faiss-cpu")
    return _growing(graph, NAMED_GRAPH_FROM)


def _growing(graph: MakeGraph | None, graph_from: int) -> ExactIndex:
    return ExactIndex() if graph is None else GrowingIndex(graph, graph_from, at_once=False)


def _cuvs() -> MakeGraph:
    from inferscale_server.ann_cuvs import CuvsAnn, find_cuvs

    return partial(_with_last, CuvsAnn, find_cuvs())


def _with_last(kind: type, modules: object, dimension: int) -> AnnIndex:
    made: AnnIndex = kind(dimension, modules)
    return made


def _cuvs_or_none() -> MakeGraph | None:
    try:
        return _cuvs()
    except ConfigError:
        return None


def _torch_or_none() -> MakeGraph | None:
    """Exact search on a GPU; None without one."""
    try:
        from inferscale_server.ann_torch import TorchAnn, cuda_is_there
    except ImportError:
        return None
    return TorchAnn if cuda_is_there() else None


def _faiss_or_none() -> MakeGraph | None:
    try:
        import faiss  # noqa: F401

        from inferscale_server.ann_faiss import FaissAnn
    except ImportError:
        return None
    return FaissAnn
