"""`inferscale bench index` on few vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from inferscale_server.ann import ExactAnn, Floats, Ids, Neighbours
from inferscale_server.bench.index_speed import DIMENSION, QUERIES, Backend, clustered, measure
from inferscale_server.cli.bench import app


def test_vectors_have_length_1_and_lie_in_clusters() -> None:
    vectors = clustered(300, 1)
    assert vectors.shape == (300, DIMENSION) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    likeness = np.sort(vectors @ vectors.T, axis=1)
    assert np.median(likeness[:, -10]) > 0.3 + np.median(likeness[:, 5])
    assert np.array_equal(vectors, clustered(300, 1)) and not np.array_equal(vectors, clustered(300, 2))


class Half(ExactAnn):
    """Finds every other one of those that are nearest."""

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        near = super().search(query, k, allow)
        return Neighbours(near.ids[::2], near.scores[::2])


def test_recall_is_the_share_of_what_exact_search_finds() -> None:
    told: list[str] = []
    backends = [Backend("exact", ExactAnn), Backend("half", Half)]
    exact, half = measure([100], backends, told.append)
    assert (exact.recall, half.recall) == (1.0, 0.5) and told == ["exact, 100 vectors", "half, 100 vectors"]
    assert exact.vectors == 100 and exact.bytes > 100 * DIMENSION * 4 and 0 < exact.median_ms <= exact.p99_ms
    assert QUERIES >= 100


def test_the_command_writes_table_figures_and_plot(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["index", "--limit", "1000", "--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "p.png")]
    )
    rows = json.loads((tmp_path / "f.json").read_text("utf-8"))["rows"]
    assert done.exit_code == 0 and "recall" in done.stdout
    assert [(row["vectors"], row["backend"]) for row in rows] == [
        (size, backend) for size in (100, 1_000) for backend in ("exact", "faiss")
    ]
    assert (tmp_path / "p.png").stat().st_size > 1_000
