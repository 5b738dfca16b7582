"""Exact search on a torch device: every vector is looked at, one product and one selection a search.

For a GPU, where a million vectors are read in about a millisecond. **It has not run on a GPU yet**; tests run it on the
CPU. Scores are float32, as torch multiplies them when nobody has allowed TF32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from inferscale_server.ann import (
    Floats,
    Ids,
    Neighbours,
    Rows,
    by_score,
    check_query,
    check_vectors,
    read_saved,
    write_saved,
)


def cuda_is_there() -> bool:
    """Can torch compute on a GPU of this machine?"""
    return torch.cuda.is_available()


class TorchAnn:
    """See AnnIndex. The vectors are only on the device."""

    def __init__(self, dimension: int, device: str = "cuda") -> None:
        self._rows, self._device = Rows(), torch.device(device)
        self._vectors = torch.empty((0, dimension), dtype=torch.float32, device=self._device)  # [rows, dimension]

    def add(self, ids: Ids, vectors: Floats) -> None:
        """See AnnIndex. Copies them to the device, and there what it has already."""
        check_vectors(vectors, len(ids), self._vectors.shape[1])
        self._rows.append(ids)
        self._vectors = torch.cat((self._vectors, self._there(vectors)))

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
            self._rows, self._vectors = Rows(self._rows.ids[alive]), self._vectors[self._there(alive)]

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        """See AnnIndex. `topk` takes any of equal scores, so all that are as good as its last are sorted by row."""
        check_query(query, k, self._vectors.shape[1])
        admitted = self._rows.admitted(allow)
        wanted = min(k, int(admitted.sum()))
        if not wanted:
            return Neighbours(np.empty(0, np.int64), np.empty(0, np.float32))
        scores = self._vectors @ self._there(query)  # [rows]
        if not admitted.all():
            scores.masked_fill_(~self._there(admitted), -torch.inf)
        good = torch.nonzero(scores >= torch.topk(scores, wanted).values[-1])[:, 0]
        rows, scores_there = good.cpu().numpy(), scores[good].cpu().numpy()
        best = by_score(scores_there, rows)[:wanted]
        return Neighbours(self._rows.ids[rows[best]], scores_there[best])

    def save(self, path: Path) -> None:
        """See AnnIndex."""
        alive = self._rows.alive
        write_saved(path, self._rows.ids[alive], self._vectors.cpu().numpy()[alive])

    def load(self, path: Path) -> None:
        """See AnnIndex."""
        ids, vectors = read_saved(path, self._vectors.shape[1])
        self._rows, self._vectors = Rows(ids), self._there(vectors)

    def bytes(self) -> int:
        """See AnnIndex."""
        return self._vectors.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def _there(self, array: npt.NDArray[np.float32] | npt.NDArray[np.bool_]) -> torch.Tensor:
        """A copy of its own on the device: the caller may write into the array again."""
        return torch.tensor(array, device=self._device)
