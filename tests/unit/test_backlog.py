"""The backlog: an order that is made once, and never shows what waits no more."""

from __future__ import annotations

from inferscale_server.backlog import Backlog
from inferscale_server.types import Fact, Owner

ALICE = Owner("local", "alice")


def fact(number: int) -> Fact:
    return Fact(f"f{number}", ALICE, number, f"text {number}", None, None, None, {}, 0.0)


class Desk:
    """Facts, which of them wait, and how often all were looked through."""

    def __init__(self, count: int) -> None:
        self.facts = [fact(number) for number in range(count)]
        self.done: set[str] = set()
        self.scans = 0
        self.backlog = Backlog(self.order, self.waits)

    def order(self, owner: Owner) -> list[Fact]:
        self.scans += 1
        return [fact for fact in self.facts if self.waits(fact)]

    def waits(self, fact: Fact) -> bool:
        return fact.id not in self.done

    def first(self, number: int) -> list[str]:
        return [fact.id for fact in self.backlog.first(ALICE, number)]


def test_all_come_in_order_from_one_look_at_the_facts() -> None:
    desk, came = Desk(100), []
    while batch := desk.first(8):
        assert desk.backlog.count(ALICE) == 100 - len(came)
        came += batch
        desk.done |= set(batch)
        if len(came) < 100:
            assert desk.backlog.count(ALICE) == 100 - len(came)
    assert came == [f"f{number}" for number in range(100)]
    assert desk.scans == 1


def test_what_failed_comes_again_before_the_others() -> None:
    desk = Desk(5)
    assert desk.first(2) == ["f0", "f1"]
    desk.done.add("f1")
    assert desk.first(2) == ["f0", "f2"]


def test_what_is_new_comes_last_without_another_look() -> None:
    desk = Desk(3)
    assert desk.first(1) == ["f0"]
    desk.facts.append(fact(9))
    desk.backlog.append(ALICE, [desk.facts[-1]])
    assert desk.first(9) == ["f0", "f1", "f2", "f9"] and desk.scans == 1


def test_after_a_drop_the_order_is_made_anew() -> None:
    desk = Desk(3)
    desk.first(1)
    desk.facts.reverse()
    desk.backlog.drop(ALICE)
    assert desk.first(3) == ["f2", "f1", "f0"] and desk.scans == 2


def test_a_count_before_anything_was_taken_is_exact() -> None:
    desk = Desk(4)
    desk.done.add("f2")
    assert desk.backlog.count(ALICE) == 3


def test_what_is_gone_leaves_the_line_without_another_look() -> None:
    desk = Desk(4)
    desk.first(1)
    gone = {desk.facts.pop(1).id, desk.facts.pop().id}
    desk.backlog.remove(ALICE, gone)
    assert desk.first(9) == ["f0", "f2"] and desk.scans == 1


def test_an_owner_whose_last_fact_is_gone_has_no_line() -> None:
    desk = Desk(1)
    desk.first(1)
    desk.backlog.remove(ALICE, {desk.facts.pop().id})
    assert desk.backlog.count(ALICE) == 0 and desk.first(1) == []
