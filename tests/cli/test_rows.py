"""What a table shows on a terminal of 80 columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from inferscale_sdk import Fact
from inferscale_server.cli.rows import show

COLUMNS = ("id", "timestamp", "speaker", "text", "metadata")
LONG = "Alice moved from Oslo to Bergen in the spring and has lived there in a house by the sea ever since."


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def fact(id: str, speaker: str | None = None) -> Fact:
    return Fact(
        id=id, text=LONG, speaker=speaker, timestamp=datetime(2025, 1, 2, tzinfo=UTC), metadata={"topic": "home"}
    )


def test_an_id_stands_whole_on_the_first_line_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    ids = ["0123456789abcdef" * 2, "fedcba9876543210" * 2]
    show([fact(id, "Alice") for id in ids], COLUMNS, False)
    lines = capsys.readouterr().out.splitlines()
    assert [word for line in lines for word in line.split() if word in ids] == ids
    assert max(map(len, lines)) <= 80


def test_the_text_is_folded_and_nothing_of_it_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    show([fact("f1")], ("id", "text"), False)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(rows) > 1
    assert " ".join(row.split("│")[2].strip() for row in rows) == LONG


def test_an_id_that_fills_the_screen_makes_the_table_wider(capsys: pytest.CaptureFixture[str]) -> None:
    long_id = "x" * 200
    show([fact(long_id)], ("id", "text"), False)
    assert long_id in capsys.readouterr().out


def test_a_column_without_values_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show([fact("f1")], COLUMNS, False)
    assert "speaker" not in capsys.readouterr().out
    show([fact("f1"), fact("f2", "Ann")], COLUMNS, False)
    assert "speaker" in capsys.readouterr().out


def test_nothing_is_said_in_words_to_a_person_and_in_no_lines_to_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    show([], COLUMNS, False, "no memories of alice")
    assert capsys.readouterr().out == "no memories of alice\n"
    show([], COLUMNS, True, "no memories of alice")
    assert capsys.readouterr().out == ""
