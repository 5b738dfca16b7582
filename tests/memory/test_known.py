"""What is known without SQL: which facts' time has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.known import LEAST_REBUILT, KnownFacts
from inferscale_server.trigrams import TrigramIndex
from inferscale_server.types import Fact, Owner

ALICE, BOB = Owner("local", "alice"), Owner("local", "bob")
TIMES = st.one_of(st.none(), st.integers(1, 9).map(float))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([ALICE, BOB]), st.integers(0, 5), TIMES),
        st.tuples(st.just("drop"), st.sampled_from([ALICE, BOB]), st.integers(0, 5), st.none()),
        st.tuples(st.just("drop_owner"), st.sampled_from([ALICE, BOB]), st.just(0), st.none()),
    ),
    max_size=40,
)


class LookedAt(KnownFacts):
    """Counts the facts that are looked at."""

    looks = 0

    def get(self, owner: Owner, fact_id: str) -> Fact | None:
        self.looks += 1
        return super().get(owner, fact_id)


@dataclass
class SlowTwin:
    """Looks at every fact."""

    ends: dict[tuple[Owner, str], float | None] = field(default_factory=dict)

    def overdue(self, owner: Owner, now: float) -> set[str]:
        mine = ((name, end) for (of, name), end in self.ends.items() if of == owner)
        return {name for name, end in mine if end is not None and end <= now}


def known_facts() -> LookedAt:
    return LookedAt(TrigramIndex(lambda text: 1.0))


@given(steps=STEPS, now=st.integers(0, 10).map(float))
def test_what_is_overdue_agrees_with_the_slow_twin(
    steps: list[tuple[str, Owner, int, float | None]], now: float
) -> None:
    known, slow = known_facts(), SlowTwin()
    for action, owner, number, end in steps:
        name = str(number)
        if action == "add":
            known.add([made(owner, name, end)])
            slow.ends[owner, name] = end
        elif action == "drop":
            known.drop(owner, name)
            slow.ends.pop((owner, name), None)
        else:
            known.drop_owner(owner)
            slow.ends = {key: kept for key, kept in slow.ends.items() if key[0] != owner}
        for who in (ALICE, BOB):
            assert set(known.overdue(who, now)) == slow.overdue(who, now)


def test_no_fact_is_looked_at_before_the_first_ones_time() -> None:
    known = known_facts()
    known.add([made(ALICE, str(number), 100.0 + number) for number in range(50)])
    assert known.overdue(ALICE, 99.0) == () and known.looks == 0
    assert known.overdue(ALICE, 100.0) == ("0",) and known.looks == 1


def test_a_fact_that_changes_its_time_for_ever_takes_no_more_memory() -> None:
    known = known_facts()
    known.add([made(ALICE, "soon", 1.0)])
    for number in range(10 * LEAST_REBUILT):
        known.add([made(ALICE, "later", 100.0 + number)])
    assert len(known._mortal[ALICE].queue) <= LEAST_REBUILT + 4
    assert known.overdue(ALICE, 1.0) == ("soon",)


def made(owner: Owner, name: str, end: float | None) -> Fact:
    return Fact(name, owner, 0, f"note {name}", None, None, None, {}, 0.0, expires_at=end)
