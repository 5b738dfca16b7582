"""Claims about relative dates."""

from __future__ import annotations

import pytest

from inferscale_server.extraction.dates import resolve_dates, without_dates
from tests.extraction.script import SAID_AT


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("I hiked yesterday.", "I hiked yesterday (2023-05-07)."),
        ("Yesterday I hiked", "Yesterday (2023-05-07) I hiked"),
        ("the day before yesterday", "the day before yesterday (2023-05-06)"),
        ("the day after tomorrow", "the day after tomorrow (2023-05-10)"),
        ("three weeks ago", "three weeks ago (2023-04-17)"),
        ("in 2 days", "in 2 days (2023-05-10)"),
        ("two months ago", "two months ago (2023-03)"),
        ("last Monday", "last Monday (2023-05-01)"),
        ("next friday", "next friday (2023-05-12)"),
        ("last year", "last year (2022)"),
        ("gestern", "gestern (2023-05-07)"),
        ("übermorgen", "übermorgen (2023-05-10)"),
        ("ayer", "ayer (2023-05-07)"),
        ("J'ai déménagé hier", "J'ai déménagé hier (2023-05-07)"),
        ("avant-hier", "avant-hier (2023-05-06)"),
        ("aujourd’hui", "aujourd’hui (2023-05-08)"),
        ("l'altro ieri", "l'altro ieri (2023-05-06)"),
        ("depois de amanhã", "depois de amanhã (2023-05-10)"),
        ("我昨天去了北京", "我昨天 (2023-05-07)去了北京"),
    ],
)
def test_a_relative_date_gets_its_day(text: str, resolved: str) -> None:
    assert resolve_dates(text, SAID_AT) == resolved
    assert resolve_dates(resolved, SAID_AT) == resolved
    assert without_dates(resolved) == text


@pytest.mark.parametrize(
    "text",
    [
        "guten Morgen",
        "por la mañana",
        "Todayish",
        "Ich wohne hier",
        "8 May 2023",
        "a week",
        "lastly Monday",
        "la semana pasada",
    ],
)
def test_other_words_stay_as_they_are(text: str) -> None:
    assert resolve_dates(text, SAID_AT) == text


@pytest.mark.parametrize("moment", [1e300, -1e300, -62_135_596_800.0, 253_402_300_799.0, float("nan")])
def test_a_moment_at_the_edge_of_time_loses_no_text(moment: float) -> None:
    assert resolve_dates("yesterday and tomorrow", moment).startswith("yesterday")
