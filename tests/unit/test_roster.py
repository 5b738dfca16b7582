"""An owner's facts are looked through once an event, not once a batch."""

from __future__ import annotations

import asyncio

from inferscale_server.roster import FEW_GAPS, LOOP_FACTS, Roster
from inferscale_server.rosters import OWNERS, Rosters
from inferscale_server.types import Fact, Owner

from .builders import ALICE, BOB, fact


def test_new_facts_stand_behind_the_others_and_none_twice() -> None:
    roster = Roster([fact(0), fact(1)])
    roster.append([fact(1), fact(2)])
    assert roster.ids == [fact(n).id for n in range(3)] and roster.place(fact(2).id) == 2
    assert fact(2).id in roster and fact(3).id not in roster and roster.place(fact(3).id) == len(roster) == 3


class Counted:
    """Facts of an owner, and how often they were looked through."""

    def __init__(self) -> None:
        self.looks: list[Owner] = []

    def __call__(self, owner: Owner) -> tuple[Fact, ...]:
        self.looks.append(owner)
        return (fact(0, owner=owner), fact(1, owner=owner))


def test_an_owner_is_looked_through_once_and_again_when_something_was_forgotten() -> None:
    counted = Counted()
    rosters = Rosters(counted)
    for _ in range(3):
        rosters.of(ALICE)
    rosters.append(ALICE, [fact(2)])
    assert len(rosters.of(ALICE)) == 3 and counted.looks == [ALICE]
    rosters.drop(ALICE)
    assert len(rosters.of(ALICE)) == 2 and counted.looks == [ALICE, ALICE]


def test_facts_of_an_owner_who_is_not_at_work_cost_nothing() -> None:
    counted = Counted()
    Rosters(counted).append(BOB, [fact(0, owner=BOB)])
    assert counted.looks == []


def test_only_so_many_rosters_are_kept() -> None:
    counted = Counted()
    rosters = Rosters(counted)
    for number in range(OWNERS + 1):
        rosters.of(Owner("local", str(number)))
    rosters.of(Owner("local", str(OWNERS)))
    assert len(counted.looks) == OWNERS + 1
    rosters.of(Owner("local", "0"))
    assert len(counted.looks) == OWNERS + 2


def test_a_fact_that_goes_leaves_the_others_in_their_order_without_another_look() -> None:
    counted = Counted()
    rosters = Rosters(counted)
    rosters.of(ALICE)
    rosters.append(ALICE, [fact(number) for number in range(2, 40)])
    rosters.remove(ALICE, [fact(number).id for number in (0, 3, 38)])
    roster = rosters.of(ALICE)
    assert len(roster) == len(roster.ids) == 37 and fact(3).id not in roster and counted.looks == [ALICE]
    assert roster.before(fact(5).id, 3) == [fact(number).id for number in (1, 2, 4)]
    assert roster.before("unknown", 2) == [fact(number).id for number in (37, 39)]
    assert roster.session(fact(5), 2) == [fact(1).id, fact(2).id]


def test_a_rewritten_fact_keeps_its_place_by_another_look() -> None:
    counted = Counted()
    rosters = Rosters(counted)
    rosters.of(ALICE)
    rosters.remove(ALICE, [fact(0).id])
    rosters.append(ALICE, [fact(0)])
    assert rosters.of(ALICE).ids == [fact(0).id, fact(1).id] and counted.looks == [ALICE, ALICE]


def test_a_roster_that_is_mostly_gaps_is_made_anew() -> None:
    counted = Counted()
    rosters = Rosters(counted)
    rosters.of(ALICE)
    rosters.append(ALICE, many := [fact(number) for number in range(2, 2 + 2 * FEW_GAPS)])
    for each in many:
        rosters.remove(ALICE, [each.id])
    assert len(rosters.of(ALICE)) == 2 and counted.looks == [ALICE, ALICE]


async def test_many_facts_are_looked_through_in_a_thread_and_what_happens_meanwhile_follows() -> None:
    counted = Counted()
    rosters = Rosters(counted, lambda owner: LOOP_FACTS)
    making = asyncio.ensure_future(rosters.prepare(ALICE))
    await asyncio.sleep(0)
    rosters.append(ALICE, [fact(2)])
    rosters.remove(ALICE, [fact(0).id])
    await making
    assert rosters.of(ALICE).ids == [fact(1).id, fact(2).id] and counted.looks == [ALICE]


async def test_a_look_in_a_thread_that_was_overtaken_is_made_again() -> None:
    counted = Counted()
    rosters = Rosters(counted, lambda owner: LOOP_FACTS)
    making = asyncio.ensure_future(rosters.prepare(ALICE))
    await asyncio.sleep(0)
    rosters.remove(ALICE, [fact(0).id])
    rosters.append(ALICE, [fact(0)])  # rewritten
    await making
    assert rosters.of(ALICE).ids == [fact(0).id, fact(1).id] and counted.looks == [ALICE, ALICE]
