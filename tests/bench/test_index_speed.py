"""`inferscale bench index` on few vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from inferscale_server.ann import ExactAnn, Floats, Ids
from inferscale_server.bench.index_speed import DIMENSION, QUERIES, Backend, clustered, here, measure
from inferscale_server.cli.bench import app
from inferscale_server.growing_index import GrowingIndex
from inferscale_server.index import Accept, ExactIndex
from inferscale_server.types import Owner, Scored


def test_vectors_have_length_1_and_lie_in_clusters() -> None:
    vectors = clustered(300, 1)
    assert vectors.shape == (300, DIMENSION) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    likeness = np.sort(vectors @ vectors.T, axis=1)
    assert np.median(likeness[:, -10]) > 0.3 + np.median(likeness[:, 5])
    assert np.array_equal(vectors, clustered(300, 1)) and not np.array_equal(vectors, clustered(300, 2))


class Half(ExactIndex):
    """Finds every other one of those that are nearest."""

    def search(
        self, owner: Owner, query: Floats, k: int, min_score: float | None = None, accept: Accept | None = None
    ) -> tuple[Scored, ...]:
        return super().search(owner, query, k, min_score, accept)[::2]


def test_recall_is_the_share_of_what_exact_search_finds() -> None:
    told: list[str] = []
    backends = [Backend("exact", ExactIndex), Backend("half", Half), Backend("graph", Half, least=101)]
    exact, half = measure([100], backends, told.append)
    assert (exact.recall, half.recall) == (1.0, 0.5) and told == ["exact, 100 vectors", "half, 100 vectors"]
    assert exact.vectors == 100 and exact.bytes >= 100 * DIMENSION * 4 and 0 < exact.median_ms <= exact.p99_ms
    assert exact.cpu_ms > 0 and exact.build_cpu_s > 0
    assert QUERIES >= 100


def test_a_graph_is_measured_as_it_is_served_and_its_memory_counts() -> None:
    exact, graph = measure(
        [100], [Backend("exact", ExactIndex), Backend("graph", lambda: GrowingIndex(ExactAnn, 50))], str
    )
    assert graph.recall == graph.sampled == 1.0 and exact.sampled is None
    assert graph.bytes == exact.bytes + 100 * DIMENSION * 4


def test_a_backend_that_builds_nothing_is_an_error_and_no_row_of_figures() -> None:
    class Broken(ExactAnn):
        def add(self, ids: Ids, vectors: Floats) -> None:
            raise MemoryError

    with pytest.raises(RuntimeError, match="nothing was built"):
        list(measure([100], [Backend("broken", lambda: GrowingIndex(Broken, 50))], str))


def test_exact_search_comes_first_and_faiss_is_measured_where_it_is_installed() -> None:
    names = [backend.name for backend in here()]
    assert names[0] == "exact" and "faiss" in names


def test_the_command_writes_table_figures_and_plot(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["index", "--limit", "1000", "--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "p.png")]
    )
    rows = json.loads((tmp_path / "f.json").read_text("utf-8"))["rows"]
    assert done.exit_code == 0 and "recall" in done.stdout
    found = [(row["vectors"], row["backend"]) for row in rows if row["backend"] in ("exact", "faiss")]
    assert found == [(100, "exact"), (1_000, "exact"), (1_000, "faiss")]
    assert (tmp_path / "p.png").stat().st_size > 1_000
