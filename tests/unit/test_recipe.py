"""The primer: a fixed set of the owner's facts that grows by doubling and never holds a deleted one."""

from __future__ import annotations

import pytest

from inferscale_server.recipe import Isolated, Prefix, Primer, make_recipe


def ids(count: int) -> list[str]:
    return [f"f{number}" for number in range(count)]


def test_the_primer_is_the_oldest_facts() -> None:
    assert Primer(2).prefix(ids(5), None) == Prefix(True, ("f0", "f1"))


def test_the_primer_grows_only_when_the_owner_has_doubled() -> None:
    recipe, current, sizes = Primer(8), None, []
    for count in range(1, 30):
        current = recipe.prefix(ids(count), current)
        sizes.append(len(current.fact_ids))
    assert sizes[:9] == [1, 2, 2, 4, 4, 4, 4, 8, 8] and set(sizes[8:]) == {8}


def test_a_full_primer_stays_however_many_facts_come() -> None:
    current = Primer(4).prefix(ids(4), None)
    assert Primer(4).prefix(ids(400), current) is current


@pytest.mark.parametrize("gone", ["f0", "f2"])
def test_a_deleted_fact_leaves_the_primer(gone: str) -> None:
    current = Primer(3).prefix(ids(6), None)
    left = [name for name in ids(6) if name != gone]
    renewed = Primer(3).prefix(left, current)
    assert renewed.fact_ids == tuple(left[:3])


def test_a_deleted_fact_outside_the_primer_changes_nothing() -> None:
    current = Primer(3).prefix(ids(6), None)
    assert Primer(3).prefix([name for name in ids(6) if name != "f5"], current) is current


def test_an_owner_without_facts_has_the_header_alone() -> None:
    assert Primer(3).prefix([], Prefix(True, ("f0",))) == Prefix(True, ())


def test_isolated_facts_have_nothing_before_them() -> None:
    assert Isolated().prefix(ids(3), None) == Prefix(False, ())


def test_the_name_says_what_is_computed() -> None:
    assert {make_recipe("primer", 20).name, make_recipe("primer", 5).name, make_recipe("isolated", 5).name} == {
        "primer-20",
        "primer-5",
        "isolated",
    }
