"""Files of figures: what a run computes of what it holds is in them, too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from inferscale_server.bench import encoding, isolation
from inferscale_server.bench.auc import Auc
from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.figures import figures_of
from inferscale_server.bench.isolation import IsolationRun
from inferscale_server.bench.throughput_cell import ThroughputCell
from inferscale_server.cli import main
from tests.bench.invented import long_session, write
from tests.bench.small_server import small_server


@dataclass(frozen=True, slots=True)
class Part:
    """One figure, and one that is computed."""

    value: float

    @property
    def twice(self) -> float:
        return 2 * self.value


@dataclass(frozen=True, slots=True)
class Whole:
    """Parts in all kinds of places."""

    parts: tuple[Part, ...]
    by_name: MappingProxyType[str, Part]

    @property
    def first(self) -> Part:
        return self.parts[0]

    @property
    def names(self) -> list[str]:
        return [*self.by_name]


def test_fields_and_properties_of_all_parts_are_told() -> None:
    one, other = {"value": 1.5, "twice": 3.0}, {"value": None, "twice": None}
    whole = Whole((Part(1.5), Part(float("inf"))), MappingProxyType({"a": Part(1.5)}))
    assert figures_of(whole) == {"parts": [one, other], "by_name": {"a": one}, "names": ["a"]}


def test_a_ratio_says_whether_it_is_met_and_a_cell_how_many_answers_a_second() -> None:
    ratio = figures_of(Ratio("text / kv", 5.0, 6.0, True, 4.0))
    assert isinstance(ratio, dict) and ratio["met"] is False and ratio["wanted"] == "at least 6"
    cell = figures_of(ThroughputCell("kv", 5, 4, 8, 12, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0))
    assert isinstance(cell, dict) and cell["answers_per_s"] == 4.0 and "setting" not in cell


def test_an_isolation_run_says_what_is_wrong_with_it() -> None:
    told = figures_of(IsolationRun((), Auc(0.8, 0.01), Auc(0.99, 0.01)))
    assert isinstance(told, dict) and told["complaints"] == ["the time tells an attacker the right guess: AUC 0.800"]
    assert told["shared"] == 0 and told["control"]["high"] == 1.0


TTFT = {"ratios": ("met",), "encoding": ("facts_per_s",), "samples": ("outside_ms",)}
BENCHES: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {
    ("encode",): {"": ("facts_per_s", "tokens_per_s", "cost", "complaints")},
    ("equivalence", "--questions", "1"): {"agreements": ("holds",)},
    ("isolation", "--limit", "2"): {"": ("complaints", "shared"), "attacker": ("low", "high")},
    ("load", "--facts", "5", "--rate", "100", "--seconds", "0.3", "--encoded-facts", "0"): {"ratios": ("met",)},
    ("sessions", "--conversations", "1", "--turns", "2", "--facts", "5"): {"ratios": ("met",)},
    ("throughput", "--facts", "5", "--concurrency", "16", "--rounds", "1", "--tokens", "8"): {
        "cells": ("answers_per_s",),
        "ratios": ("met",),
        "encoding": ("cost",),
    },
    ("tiers", "--users", "2", "--facts", "5"): {"ratios": ("met",)},
    ("ttft", "--questions", "1"): TTFT,
    ("ttft", "--questions", "1", "--breakdown"): TTFT | {"overheads": ("met",)},
}
"""What is computed, by where it stands; the empty name is the run itself."""


@pytest.mark.parametrize("command", BENCHES, ids=" ".join)
def test_every_bench_writes_what_it_computes(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setattr(isolation, "WARM_UP_TRIALS", 1)
    monkeypatch.setattr("inferscale_server.bench.injection_clock.CAUGHT_UP_S", 0.0)
    (folder := tmp_path / "data").mkdir()
    data = () if command[0] == "isolation" else ("--data", str(write(folder, changed=long_session(45))))
    with small_server() as server, pytest.raises(SystemExit):
        main(["bench", *command, *data, "--base-url", server.url, "--json", str(tmp_path / "f.json")])
    read: dict[str, Any] = json.loads((tmp_path / "f.json").read_text())
    for place, computed in BENCHES[command].items():
        part = read[place] if place else read
        rows = part if isinstance(part, list) else [part]
        assert rows and all(set(computed) <= row.keys() for row in rows), place
