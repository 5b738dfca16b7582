"""The backlog: an order that is made once, and never shows what waits no more."""

from __future__ import annotations

import asyncio

from inferscale_server import backlog as module
from inferscale_server.backlog import IDLE_LINES, Backlog, Sorting
from inferscale_server.types import Fact, Owner

ALICE = Owner("local", "alice")


def fact(number: int) -> Fact:
    return Fact(f"f{number}", ALICE, number, f"text {number}", None, None, None, {}, 0.0)


class Desk:
    """Facts, which of them wait, how often all were looked through, and how often one was asked for."""

    def __init__(self, count: int) -> None:
        self.facts = {f"f{number}": fact(number) for number in range(count)}
        self.done: set[str] = set()
        self.scans = self.asked = 0
        self.backlog = Backlog(self.sorting, self.waiting)

    def sorting(self, owner: Owner) -> Sorting:
        self.scans += 1
        return Sorting(list(self.facts), done=frozenset(self.done))

    def waiting(self, owner: Owner, fact_id: str) -> Fact | None:
        self.asked += 1
        return None if fact_id in self.done else self.facts.get(fact_id)

    def first(self, number: int) -> list[str]:
        return [fact.id for fact in self.backlog.first(ALICE, number)]


def test_all_come_in_order_from_one_look_at_the_facts() -> None:
    desk, came = Desk(100), []
    while batch := desk.first(8):
        came += batch
        desk.done |= set(batch)
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
    desk.facts["f9"] = fact(9)
    desk.backlog.append(ALICE, ["f9"])
    assert desk.first(9) == ["f0", "f1", "f2", "f9"] and desk.scans == 1


def test_what_is_new_behind_a_line_that_was_worked_off_comes_without_another_look() -> None:
    desk = Desk(3)
    desk.done |= set(desk.first(9))
    assert desk.first(9) == [] and desk.backlog.idle(ALICE)
    desk.facts["f9"] = fact(9)
    desk.backlog.append(ALICE, ["f9"])
    assert not desk.backlog.idle(ALICE) and desk.first(9) == ["f9"] and desk.scans == 1


def test_what_a_chat_asked_for_comes_before_the_others_once_and_without_another_look() -> None:
    desk = Desk(50)
    assert desk.first(1) == ["f0"]
    desk.backlog.hurry(ALICE, ["f40", "f0"])
    assert desk.first(4) == ["f40", "f0", "f1", "f2"] and desk.scans == 1


def test_after_a_drop_the_order_is_made_anew() -> None:
    desk = Desk(3)
    desk.first(1)
    desk.facts = dict(reversed(desk.facts.items()))
    desk.backlog.drop(ALICE)
    assert desk.first(3) == ["f2", "f1", "f0"] and desk.scans == 2


def test_what_is_gone_falls_out_when_its_turn_comes_and_a_thousand_deletes_look_at_nothing() -> None:
    desk = Desk(5_000)
    desk.first(1)
    looked = desk.asked
    for number in range(1, 1_001):
        del desk.facts[f"f{number}"]
    assert desk.asked == looked and desk.scans == 1
    assert desk.first(2) == ["f0", "f1001"] and desk.scans == 1


def test_lines_that_were_worked_off_are_kept_for_so_many_owners() -> None:
    desk = Desk(0)
    for number in range(IDLE_LINES + 5):
        desk.backlog.first(Owner("local", str(number)), 1)
    assert len(desk.backlog._lines) == len(desk.backlog._idle) == IDLE_LINES


def test_the_order_is_primer_old_wanted_others() -> None:
    facts = [f"f{number}" for number in range(9)]
    line = Sorting(facts, ("f8", "f1", "gone"), frozenset({"f1", "f2"}), frozenset({"f5", "f6"}), {"f6", "f3"}).line()
    assert (list(line.first), list(line.wanted), list(line.others)) == (["f8", "f6", "f5"], ["f3"], ["f0", "f4", "f7"])


async def test_a_long_order_is_made_in_a_thread_and_holds_what_came_meanwhile() -> None:
    desk = Desk(module.LOOP_FACTS)
    making = asyncio.ensure_future(desk.backlog.prepare(ALICE))
    await asyncio.sleep(0)
    assert desk.scans == 1 and not making.done()
    desk.facts["f9999"] = fact(9999)
    desk.backlog.append(ALICE, ["f9999"])
    desk.backlog.hurry(ALICE, ["f7"])
    await making
    assert desk.first(1) == ["f7"] and desk.first(9_999)[-1] == "f9999" and desk.scans == 1


async def test_a_long_order_that_changed_meanwhile_is_made_anew() -> None:
    desk = Desk(module.LOOP_FACTS)
    making = asyncio.ensure_future(desk.backlog.prepare(ALICE))
    await asyncio.sleep(0)
    desk.backlog.drop(ALICE)
    del desk.facts["f0"]
    await making
    assert desk.scans == 2 and desk.first(1) == ["f1"]
