"""S3's benchmark tells a server that leaks from one that does not, and a clock that sees from one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.bench import encoding, isolation
from inferscale_server.bench.auc import auc_of
from inferscale_server.bench.isolation import WARM_UP_TRIALS, Guess, IsolationRun, summary
from inferscale_server.cli import main
from tests.bench.small_server import SmallServer, small_server

TRIALS = 6


class Cache:
    """A prefix cache and the clock that shows it: a text that was seen costs a tenth. `shared` by all users, or not."""

    def __init__(self, server: SmallServer, *, shared: bool, helps: bool = True) -> None:
        self._server, self._shared, self._helps = server, shared, helps
        self._seen: set[tuple[str, str]] = set()
        self._asked: dict[str, int] = {}
        self.now = 0.0

    def tokens(self, user: str, memory: dict[str, Any]) -> int:
        """How many tokens of this chat's memory come from the cache; the clock moves."""
        if "context" in memory:
            text = str(memory["context"])
        else:  # a victim's own question: its fact is the next of those that were stored
            text = str([self._server.facts[len(self._asked)]["text"]])
            self._asked[user] = 1
        key = ("" if self._shared else user, text)
        hit = key in self._seen
        self._seen.add(key)
        self.now += 0.001 * len(self._seen) % 0.01 + (0.1 if hit and self._helps else 1.0)
        return 50 if hit else 0


def run(monkeypatch: pytest.MonkeyPatch, figures: Path, plot: Path, **how: bool) -> int:
    """The command's exit code."""
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    with small_server() as server:
        cache = Cache(server, **how)
        server.cached_tokens = cache.tokens
        monkeypatch.setattr(isolation, "perf_counter", lambda: cache.now)
        options = ("--limit", str(TRIALS), "--json", str(figures), "--plot", str(plot))
        with pytest.raises(SystemExit) as ended:
            main(["bench", "isolation", "--base-url", server.url, *options])
    assert len(server.deleted) == len(set(server.deleted)) == TRIALS + WARM_UP_TRIALS
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_S3_a_cache_of_each_users_own_tells_nobody_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "f.json", tmp_path / "p.svg", shared=False) == 0
    read = json.loads((tmp_path / "f.json").read_text())
    assert read["control"]["value"] == 1.0 and len(read["guesses"]) == 4 * TRIALS
    assert not any(guess["cached"] for guess in read["guesses"] if guess["side"] == "attacker")
    assert "<svg" in (tmp_path / "p.svg").read_text() and "another user" in capsys.readouterr().out


def test_S3_a_shared_cache_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "f.json", tmp_path / "p.png", shared=True) == 1
    error = capsys.readouterr().err
    assert "the time tells an attacker the right guess: AUC 1.000" in error
    assert f"{TRIALS} guesses were served from another user's cache" in error


def test_S3_a_clock_that_sees_no_hit_voids_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "f.json", tmp_path / "p.png", shared=False, helps=False) == 1
    assert "void" in capsys.readouterr().err


def test_the_area_is_the_share_of_pairs_that_are_in_order() -> None:
    for faster, slower in (([1.0, 2, 3], [2.0, 3, 4]), ([5.0], [1.0, 5.0]), ([1.0, 1], [1.0, 1])):
        pairs = [(f < s) + 0.5 * (f == s) for f in faster for s in slower]
        assert auc_of(faster, slower).value == pytest.approx(sum(pairs) / len(pairs))


def test_six_hundred_guesses_that_say_nothing_have_an_error_below_two_percent() -> None:
    values = [float(number * 7_919 % 1_201) for number in range(1_200)]
    auc = auc_of(values[::2], values[1::2])
    assert auc.error == pytest.approx(0.0167, abs=0.0005) and auc.low < 0.5 < auc.high


def test_few_guesses_are_judged_by_their_error() -> None:
    def guesses(attacker: list[float]) -> IsolationRun:
        right, wrong = attacker[::2], attacker[1::2]
        made = [Guess("attacker", True, ms, False) for ms in right] + [
            Guess("attacker", False, ms, False) for ms in wrong
        ]
        made += [Guess("control", True, 1.0, True), Guess("control", False, 9.0, False)]
        return summary(made)

    by_chance = guesses([1.0, 2.0, 3.0, 4.0, 6.0, 5.0])  # 0.67 of three pairs says nothing
    assert by_chance.attacker.value > 0.55 and by_chance.complaints == []
    assert guesses([float(n + 100 * (n % 2)) for n in range(40)]).complaints != []
