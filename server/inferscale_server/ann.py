"""Nearest vectors of one collection behind one protocol, and the exact form that others are compared with.

Ids are int64, vectors are float32 and of length 1, scores are inner products; a search gives fewer than k rather than
padding. What a collection is of (an owner's facts, a corpus) its caller knows.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

DEAD_SHARE = 0.25
"""Of all rows; when more are dead, a collection is built anew without them."""
UNREADABLE = (BadZipFile, EOFError, KeyError, IndexError, RuntimeError, SyntaxError, zlib.error)
"""What numpy and zipfile raise for a damaged archive, besides ValueError."""


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """`ids` (n,) int64, best first, and their `scores` (n,) float32."""

    ids: Ids
    scores: Floats


class AnnIndex(Protocol):
    """One collection. Searches may run beside each other, nothing else may run beside anything."""

    def add(self, ids: Ids, vectors: Floats) -> None:
        """Row i of `vectors` (n, dimension) belongs to `ids[i]` (n,). Raises ValueError for an id that is there."""

    def build(self) -> None:
        """Do what makes searches quick, however long it takes; a search never does, and is right without it."""

    def widen(self) -> bool:
        """Let every search from now on look at more vectors. False, with nothing changed, when none would be missed as
        it is, or when looking at all of them would take no longer."""

    def remove(self, ids: Ids) -> None:
        """Unknown ids are passed over; the others are never found again."""

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        """The nearest to `query` (dimension,), at most `k` >= 1, of those in `allow` if that is given."""

    def save(self, path: Path) -> None:
        """Write everything that `load` needs. Raises OSError."""

    def load(self, path: Path) -> None:
        """Hold what `save` wrote and nothing else. Raises OSError, and ValueError also for another dimension."""

    def bytes(self) -> int:
        """Bytes of memory that it takes, on host and device together."""

    def __len__(self) -> int:
        """How many vectors can be found."""


class Rows:
    """Which row of a backend's arrays belongs to which id, and which rows are dead: rows are only ever appended."""

    def __init__(self, ids: Ids | None = None) -> None:
        self.ids: Ids = np.empty(0, np.int64) if ids is None else ids
        self.alive = np.ones(len(self.ids), np.bool_)
        self._of_id = {int(id_): row for row, id_ in enumerate(self.ids)}

    def append(self, ids: Ids) -> None:
        """Raises ValueError, with nothing changed, when an id stands twice or is there."""
        new = ids.tolist()
        if len(set(new)) != len(new) or not self._of_id.keys().isdisjoint(new):
            raise ValueError("an id is there already, or stands twice")
        self._of_id |= {id_: len(self.ids) + place for place, id_ in enumerate(new)}
        self.ids = np.concatenate((self.ids, np.asarray(ids, np.int64)))
        self.alive = np.concatenate((self.alive, np.ones(len(ids), np.bool_)))

    def kill(self, ids: Ids) -> None:
        """Unknown ids are passed over."""
        rows = [self._of_id.pop(id_) for id_ in ids.tolist() if id_ in self._of_id]
        self.alive[rows] = False

    def admitted(self, allow: Ids | None) -> npt.NDArray[np.bool_]:
        """(rows,) True where a row may be found."""
        if allow is None:
            return self.alive
        mask = np.zeros(len(self.ids), np.bool_)
        mask[[self._of_id[id_] for id_ in allow.tolist() if id_ in self._of_id]] = True
        return mask

    def rotten(self) -> bool:
        """Are so many rows dead that the arrays should be built anew?"""
        return len(self.ids) - len(self._of_id) > DEAD_SHARE * len(self.ids)

    def __len__(self) -> int:
        return len(self._of_id)


class ExactAnn:
    """Every vector is looked at. The twin of all others."""

    def __init__(self, dimension: int) -> None:
        self._rows, self._vectors = Rows(), np.empty((0, dimension), np.float32)

    def add(self, ids: Ids, vectors: Floats) -> None:
        """See AnnIndex."""
        check_vectors(vectors, len(ids), self._vectors.shape[1])
        self._rows.append(ids)
        self._vectors = np.concatenate((self._vectors, vectors))

    def build(self) -> None:
        """See AnnIndex. There is nothing to do."""

    def widen(self) -> bool:
        """See AnnIndex."""
        return False

    def remove(self, ids: Ids) -> None:
        """See AnnIndex."""
        self._rows.kill(ids)
        if self._rows.rotten():
            alive = self._rows.alive
            self._rows, self._vectors = Rows(self._rows.ids[alive]), self._vectors[alive]

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        """See AnnIndex."""
        return nearest_rows(self._vectors, self._rows.ids, self._rows.admitted(allow), query, k)

    def save(self, path: Path) -> None:
        """See AnnIndex."""
        alive = self._rows.alive
        write_saved(path, self._rows.ids[alive], self._vectors[alive])

    def load(self, path: Path) -> None:
        """See AnnIndex."""
        ids, self._vectors = read_saved(path, self._vectors.shape[1])
        self._rows = Rows(ids)

    def bytes(self) -> int:
        """See AnnIndex."""
        return self._vectors.nbytes

    def __len__(self) -> int:
        return len(self._rows)


def nearest_rows(vectors: Floats, ids: Ids, admitted: npt.NDArray[np.bool_], query: Floats, k: int) -> Neighbours:
    """The best of the admitted rows by inner product, equal scores by row."""
    check_query(query, k, vectors.shape[1])
    rows = np.flatnonzero(admitted)
    scores = vectors[rows] @ query if len(rows) < len(vectors) else vectors @ query
    order = np.argsort(-scores, kind="stable")[:k]
    return Neighbours(ids[rows[order]], scores[order].astype(np.float32))


def by_score(scores: Floats, rows: Ids) -> npt.NDArray[np.intp]:
    """Places of (n,) scores and rows, best score first, equal scores by row."""
    return np.asarray(np.lexsort((rows, -scores)))


def write_saved(path: Path, ids: Ids, vectors: Floats) -> None:
    """Write ids (n,) and vectors (n, dimension) for `read_saved`. Raises OSError."""
    write_arrays(path, ids=ids, vectors=vectors)


def read_saved(path: Path, dimension: int) -> tuple[Ids, Floats]:
    """ids (n,) and vectors (n, dimension) of a file that `write_saved` wrote. Raises OSError, ValueError."""
    arrays = read_arrays(path, "ids", "vectors")
    try:
        check_ids(arrays["ids"])
        check_vectors(arrays["vectors"], len(arrays["ids"]), dimension)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return arrays["ids"], arrays["vectors"]


def write_arrays(path: Path, **arrays: npt.NDArray[Any]) -> None:
    """Write arrays, each with a checksum, for `read_arrays`. Raises OSError."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a file that `write_arrays` wrote. Raises OSError, and ValueError for a damaged file or another one."""
    archive = BytesIO(path.read_bytes())
    try:
        with np.load(archive, allow_pickle=False) as saved:
            return {name: np.asarray(saved[name]) for name in names}
    except (*UNREADABLE, OSError) as error:  # the file was read: an offset in it leads nowhere
        raise ValueError(f"{path} is damaged or no index") from error


def check_ids(ids: npt.NDArray[Any]) -> None:
    """Raises ValueError unless ids are (n,) int64, none of them twice."""
    if ids.ndim != 1 or ids.dtype != np.int64 or len(np.unique(ids)) != len(ids):
        raise ValueError(f"ids of {ids.dtype} {ids.shape}: they must be int64 (n,), each once")


def check_vectors(vectors: Floats, count: int, dimension: int) -> None:
    """Raises ValueError unless vectors are (count, dimension) float32 of length 1."""
    if vectors.shape != (count, dimension) or vectors.dtype != np.float32:
        raise ValueError(f"{vectors.dtype} {vectors.shape} instead of float32 {(count, dimension)}")
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3):
        raise ValueError("a vector's length is not 1")


def check_query(query: Floats, k: int, dimension: int) -> None:
    """Raises ValueError unless the query is (dimension,) float32 and finite, and k at least 1."""
    if query.shape != (dimension,) or query.dtype != np.float32 or k < 1:
        raise ValueError(f"a query of {query.dtype} {query.shape} with k = {k}, in {dimension} dimensions")
    if not np.isfinite(query).all():
        raise ValueError("a query is not finite")
