"""Claims about deletions of many facts at once, for those that wait to be stored."""

from __future__ import annotations

import pytest

from inferscale_server.filters import parse_filter
from inferscale_server.types import FactDraft, Owner
from inferscale_server.wipes import KEPT, Wipes

ALICE, BOB = Owner("local", "alice"), Owner("local", "bob")
NOW = 1_800_000_000.0
OF_R1 = parse_filter({"run_id": "r1"})
DRAFT = FactDraft("I have a dog", "user", occurred_at=NOW - 60, metadata={"topic": "pets"}, run_id="r1")


@pytest.mark.parametrize(
    ("where", "concerned"),
    [
        ({"run_id": "r1"}, True),
        ({"run_id": "r2"}, False),
        ({"topic": "pets"}, True),
        ({"timestamp": {"lt": "1990-01-01"}}, False),
        ({"created_at": {"gte": "2020-01-01"}}, True),
        ({"not": {"speaker": "user"}}, False),
    ],
)
def test_a_wipe_is_about_what_it_would_have_deleted(where: dict[str, object], concerned: bool) -> None:
    wipes = Wipes()
    wipes.note(ALICE, parse_filter(where))
    assert wipes.concern(ALICE, 0, [FactDraft("x"), DRAFT], NOW) is (concerned or "not" in where)
    assert wipes.concern(ALICE, 0, [DRAFT], NOW) is concerned


def test_only_what_came_later_and_of_the_same_owner_counts() -> None:
    wipes = Wipes()
    wipes.note(ALICE)
    assert wipes.concern(ALICE, 0, [DRAFT], NOW)
    assert not wipes.concern(ALICE, wipes.number(ALICE), [DRAFT], NOW)
    assert not wipes.concern(BOB, 0, [DRAFT], NOW)


def test_a_wipe_that_is_too_old_to_be_known_counts_as_one_of_all() -> None:
    wipes = Wipes()
    for _ in range(KEPT + 1):
        wipes.note(ALICE, parse_filter({"run_id": "r2"}))
    assert wipes.concern(ALICE, 0, [DRAFT], NOW)
    assert not wipes.concern(ALICE, 1, [DRAFT], NOW)
