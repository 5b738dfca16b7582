"""An owner's facts are looked through once an event, not once a batch."""

from __future__ import annotations

from inferscale_server.roster import OWNERS, Roster, Rosters
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
