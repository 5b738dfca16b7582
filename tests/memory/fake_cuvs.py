"""A stand-in for cuVS 26.10 on the CPU: it checks what it is given as the real one would, and pads with sentinels."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inferscale_server.ann_cuvs import Cuvs

SENTINEL = np.iinfo(np.uint32).max


@dataclass(frozen=True)
class OnDevice:
    """An array on the device: nothing of numpy works on it by accident."""

    array: npt.NDArray[Any]


class Built:
    """An index only looks at the vectors: whoever built it must keep them."""

    def __init__(self, dataset: OnDevice) -> None:
        self._kept = weakref.ref(dataset)

    @property
    def dataset(self) -> npt.NDArray[np.float32]:
        kept = self._kept()
        assert kept is not None, "the vectors' memory on the device was freed"
        return kept.array


@dataclass
class Bitset:
    words: npt.NDArray[np.uint32] | None

    def mask(self, rows: int) -> npt.NDArray[np.bool_]:
        if self.words is None:
            return np.ones(rows, np.bool_)
        assert self.words.shape == (-(-rows // 32),), "a bitset needs one word for 32 rows"
        return np.unpackbits(self.words.view(np.uint8), bitorder="little")[:rows].astype(np.bool_)


def _searched(built: Built, queries: Any, k: int, filter_: Bitset, ids: Any) -> tuple[OnDevice, OnDevice]:
    assert isinstance(queries, OnDevice) and queries.array.dtype == np.float32 and queries.array.flags["C_CONTIGUOUS"]
    assert 1 <= k <= len(built.dataset)
    mask = filter_.mask(len(built.dataset))
    scores = np.where(mask, built.dataset @ queries.array[0], -np.inf)
    rows = np.argsort(-scores, kind="stable")[:k]
    padded = np.where(mask[rows], rows, ids.max if ids.dtype == np.uint32 else -1).astype(ids.dtype)
    return OnDevice(scores[rows][None, :].astype(np.float32)), OnDevice(padded[None, :])


class BruteForce:
    """cuvs.neighbors.brute_force: int64 neighbours, keyword `prefilter`."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def build(self, dataset: Any, metric: str = "sqeuclidean", metric_arg: float = 2.0, resources: Any = None) -> Built:
        assert isinstance(dataset, OnDevice) and dataset.array.dtype == np.float32 and metric == "inner_product"
        self.calls.append("brute_force.build")
        return Built(dataset)

    def search(
        self,
        index: Built,
        queries: Any,
        k: int,
        neighbors: Any = None,
        distances: Any = None,
        resources: Any = None,
        prefilter: Any = None,
    ) -> tuple[OnDevice, OnDevice]:
        self.calls.append("brute_force.search")
        return _searched(index, queries, k, prefilter, np.iinfo(np.int64))


@dataclass
class IndexParams:
    metric: str = "sqeuclidean"
    intermediate_graph_degree: int = 128
    graph_degree: int = 64


@dataclass
class SearchParams:
    itopk_size: int = 64
    search_width: int = 1
    num_random_samplings: int = 1


class Cagra:
    """cuvs.neighbors.cagra: uint32 neighbours, keyword `filter`; loses what it does not like under a filter."""

    IndexParams, SearchParams = IndexParams, SearchParams

    def __init__(self, calls: list[str], lossy: bool) -> None:
        self.calls, self.lossy = calls, lossy

    def build(self, index_params: IndexParams, dataset: Any, resources: Any = None) -> Built:
        assert index_params.metric == "inner_product" and isinstance(dataset, OnDevice)
        self.calls.append("cagra.build")
        return Built(dataset)

    def search(
        self,
        search_params: SearchParams,
        index: Built,
        queries: Any,
        k: int,
        neighbors: Any = None,
        distances: Any = None,
        resources: Any = None,
        filter: Any = None,
    ) -> tuple[OnDevice, OnDevice]:
        assert search_params.itopk_size >= k and search_params.itopk_size % 32 == 0
        assert search_params.num_random_samplings > 1
        self.calls.append("cagra.search")
        scores, rows = _searched(index, queries, k, filter, np.iinfo(np.uint32))
        if self.lossy:
            scores.array[0, -1], rows.array[0, -1] = -np.inf, SENTINEL
        return scores, rows


class Filters:
    """cuvs.neighbors.filters."""

    @staticmethod
    def no_filter() -> Bitset:
        return Bitset(None)

    @staticmethod
    def from_bitset(bitset: Any) -> Bitset:
        assert isinstance(bitset, OnDevice) and bitset.array.dtype == np.uint32
        return Bitset(bitset.array)


@dataclass
class FakeCuvs:
    """`calls` are the names of what was called, in order."""

    lossy: bool = False
    calls: list[str] = field(default_factory=list)

    def modules(self) -> Cuvs:
        return Cuvs(
            BruteForce(self.calls),
            Cagra(self.calls, self.lossy),
            Filters,
            OnDevice,
            lambda on_device: on_device.array,
        )
