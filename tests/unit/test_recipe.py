"""Recipes: what a fact is encoded behind, when a primer is chosen anew, and that a name says what is computed."""

from __future__ import annotations

import numpy as np
import pytest

from inferscale_server.recipe import Primer, Recipe, RecipeSizes, make_recipe
from inferscale_server.recipe_name import check_recipe
from inferscale_server.roster import Roster
from inferscale_server.types import Fact
from inferscale_server.vectors import FactVectors

from .builders import ALICE

NONE = Primer()


def fact(number: int, session: str | None = None, said_at: float | None = None) -> Fact:
    return Fact(f"f{number}", ALICE, number, f"note {number}", None, said_at, session, {}, 0.0)


def roster(count: int, session: str | None = None) -> Roster:
    return Roster([fact(number, session) for number in range(count)])


def ids(*numbers: int) -> tuple[str, ...]:
    return tuple(f"f{number}" for number in numbers)


def no_vectors() -> FactVectors:
    raise AssertionError("nothing is to be chosen")


def clusters(count: int, groups: int) -> FactVectors:
    """Fact n points to where group n % groups is; the group's first fact stands at its centre, the others around it."""
    angles = np.array([2 * np.pi * (n % groups) / groups + 0.01 * (n // groups) * (-1) ** n for n in range(count)])
    matrix = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return FactVectors(ids(*range(count)), matrix)


# Primer


def test_while_there_are_few_facts_the_primer_is_all_of_them_in_order() -> None:
    recipe, current = Recipe(primer_facts=20), NONE
    for count in range(1, 21):
        grown = recipe.primer(roster(count), current, no_vectors)
        assert grown.fact_ids == ids(*range(count)) and grown.extends(current)
        current = grown


def test_the_primer_holds_one_fact_of_each_cluster_oldest_first() -> None:
    primer = Recipe(primer_facts=4).primer(roster(40), NONE, lambda: clusters(40, 4))
    numbers = [int(fact_id[1:]) for fact_id in primer.fact_ids]
    assert {number % 4 for number in numbers} == {0, 1, 2, 3} and numbers == sorted(numbers)


def test_the_same_facts_give_the_same_primer() -> None:
    primers = {Recipe(primer_facts=5).primer(roster(60), NONE, lambda: clusters(60, 7)) for _ in range(5)}
    assert len(primers) == 1


def test_a_full_primer_stays_until_the_owner_has_doubled() -> None:
    recipe = Recipe(primer_facts=4)
    current, chosen_at = NONE, []
    for count in range(1, 100):
        grown = recipe.primer(roster(count), current, lambda: clusters(count, 5))  # noqa: B023
        if count > 4 and grown.chosen_of != current.chosen_of:
            chosen_at.append(count)
        current = grown
    assert chosen_at == [8, 16, 32, 64]


def test_the_oldest_facts_can_be_the_primer() -> None:
    recipe = Recipe(primer_facts=3, choice="oldest")
    assert recipe.primer(roster(9), NONE, no_vectors).fact_ids == ids(0, 1, 2)


def test_a_primer_that_lost_a_fact_is_chosen_anew() -> None:
    recipe = Recipe(primer_facts=4)
    assert recipe.due(40, Primer(ids(1, 2), 39)) and not recipe.due(40, Primer(ids(1, 2, 3, 4), 39))


def test_facts_without_vectors_leave_the_oldest() -> None:
    recipe = Recipe(primer_facts=3)
    assert recipe.primer(roster(9), NONE, lambda: clusters(2, 2)).fact_ids == ids(0, 1, 2)


def test_a_fact_of_the_primer_is_encoded_behind_those_before_it_and_others_behind_all() -> None:
    recipe, primer = Recipe(primer_facts=3), Primer(ids(2, 5, 7), 10)
    behind = [recipe.behind(roster(10), fact(number), primer) for number in (2, 5, 7, 1, 9)]
    assert behind == [(), ids(2), ids(2, 5), ids(2, 5, 7), ids(2, 5, 7)]


# Windows


def test_an_isolated_fact_has_nothing_before_it_and_a_recipe_of_the_header_no_facts() -> None:
    for name, header in (("isolated", False), ("header", True)):
        recipe = make_recipe(name, RecipeSizes())
        assert recipe.header == header and recipe.behind(roster(9), fact(8), NONE) == ()


def test_a_fact_is_encoded_behind_the_earlier_facts_of_its_session_alone() -> None:
    facts = [fact(0, "s"), fact(1, "t"), fact(2, "s"), fact(3, "t"), fact(4, "s")]
    recipe = make_recipe("session", RecipeSizes())
    assert [recipe.behind(Roster(facts), each, NONE) for each in facts] == [(), (), ids(0), ids(1), ids(0, 2)]


def test_without_a_session_the_moment_is_the_session() -> None:
    facts = [fact(0, None, 5.0), fact(1, None, 6.0), fact(2, None, 5.0)]
    recipe = make_recipe("session", RecipeSizes())
    assert recipe.behind(Roster(facts), facts[2], NONE) == ids(0)


@pytest.mark.parametrize("turns", [1, 5, 20, 50])
def test_a_window_holds_the_preceding_facts_of_the_owner(turns: int) -> None:
    recipe = make_recipe("window", RecipeSizes(window_turns=turns))
    assert recipe.behind(roster(60), fact(55), NONE) == ids(*range(55 - turns, 55))
    assert recipe.behind(roster(60), fact(1), NONE) == ids(0)


def test_neighbours_are_the_nearest_facts_the_nearest_last() -> None:
    angles = np.array([0.0, 0.5, 0.1, 3.0, 0.3])
    vectors = FactVectors(ids(*range(5)), np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    recipe = make_recipe("neighbours", RecipeSizes(neighbours=3))
    assert recipe.behind(roster(5), fact(0), NONE, vectors) == ids(1, 4, 2)


def test_neighbours_that_are_gone_are_left_out() -> None:
    recipe = make_recipe("neighbours", RecipeSizes(neighbours=5))
    assert recipe.behind(Roster([fact(0), fact(2)]), fact(0), NONE, clusters(4, 4)) == ids(2)


def test_in_a_combination_no_fact_stands_twice() -> None:
    recipe = make_recipe("primer+session", RecipeSizes(primer_facts=2))
    primer, facts = Primer(ids(0, 3), 6), roster(6, "s")
    assert recipe.behind(facts, fact(5, "s"), primer) == ids(0, 3, 1, 2, 4)
    assert recipe.behind(facts, fact(3, "s"), primer) == ids(0, 1, 2)


# Names


def test_the_name_says_what_is_computed() -> None:
    recipes = [
        make_recipe(name, sizes)
        for name in (
            "isolated",
            "header",
            "primer",
            "session",
            "window",
            "neighbours",
            "primer+session",
            "primer+window",
        )
        for sizes in (RecipeSizes(), RecipeSizes(5, 7, 9, "oldest"))
    ]
    assert len({recipe.name for recipe in recipes}) == 13  # three of them have no sizes
    assert make_recipe("primer+session", RecipeSizes()).name == "primer-20-medoids+session"


@pytest.mark.parametrize("name", ["", "primers", "primer+", "session+primer", "isolated+session", "session+session"])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="primer\\+session"):
        check_recipe(name)
