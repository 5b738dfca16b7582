"""S2: two requests share cached blocks only when owner, epoch, plan and fingerprint are the same."""

from __future__ import annotations

import re

from inferscale_server.salts import TEXT, Salts
from inferscale_server.types import Owner

from .builders import ALICE, BOB, SECRET


def test_every_part_changes_the_salt() -> None:
    salts, other_model = Salts(SECRET, "f"), Salts(SECRET, "g")
    made = [
        salts.of(ALICE, 0),
        salts.of(BOB, 0),
        salts.of(None, 0),
        salts.of(ALICE, 1),
        salts.of(ALICE, 0, "plan"),
        salts.of(ALICE, 0, "other plan"),
        salts.of(BOB, 0, "plan"),
        other_model.of(ALICE, 0),
        Salts(b"another secret", "f").of(ALICE, 0),
    ]
    assert len(set(made)) == len(made)


def test_the_same_parts_give_the_same_salt() -> None:
    assert Salts(SECRET, "f").of(ALICE, 3, "plan") == Salts(SECRET, "f").of(ALICE, 3, "plan")


def test_a_salt_is_64_hex_characters() -> None:
    assert re.fullmatch("[0-9a-f]{64}", Salts(SECRET, "f").of(ALICE, 0, TEXT))


def test_tenant_and_user_cannot_be_shifted_into_each_other() -> None:
    salts = Salts(SECRET, "f")
    assert salts.of(Owner("a", "b/c"), 0) != salts.of(Owner("a/b", "c"), 0)


def test_an_owner_called_nobody_is_not_nobody() -> None:
    salts = Salts(SECRET, "f")
    assert salts.of(Owner("local", "nobody"), 0) != salts.of(None, 0)


def test_a_retired_plan_gets_another_salt_each_time_and_others_keep_theirs() -> None:
    salts = Salts(SECRET, "f")
    first, text = salts.of(ALICE, 0, "plan"), salts.of(ALICE, 0)
    salts.retire("plan")
    second = salts.of(ALICE, 0, "plan")
    salts.retire("plan")
    assert len({first, second, salts.of(ALICE, 0, "plan")}) == 3
    assert salts.of(ALICE, 0) == text
