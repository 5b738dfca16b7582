"""What is told of questions that could not be measured."""

from __future__ import annotations

from inferscale_server.bench.accuracy.failure import SHOWN, Failure, told


def failures(number: int, reason: str) -> list[Failure]:
    return [Failure(f"ten/{at}", "primer", 20, reason) for at in range(number)]


def test_nothing_failed_is_nothing_told() -> None:
    assert told([]) == []


def test_few_failures_are_each_a_line() -> None:
    assert told(failures(2, "timeout")) == ["ten/0, primer, k = 20: timeout", "ten/1, primer, k = 20: timeout"]


def test_thousands_that_fail_for_one_reason_are_six_lines() -> None:
    lines = told(failures(3_000, "timeout"))
    assert lines[:-1] == [f"ten/{at}, primer, k = 20: timeout" for at in range(SHOWN)]
    assert lines[-1] == "and 2995 more: timeout"


def test_the_most_frequent_reason_comes_first_and_each_has_its_own_lines() -> None:
    lines = told([*failures(1, "refused"), *failures(7, "timeout")])
    assert lines[SHOWN:] == ["and 2 more: timeout", "ten/0, primer, k = 20: refused"]


def test_many_reasons_are_few_lines_and_none_is_left_out_of_the_count() -> None:
    lines = told([one for at in range(40) for one in failures(2, f"reason {at}")])
    assert len(lines) == 2 * SHOWN + 1 and lines[-1] == "and 70 more, for 35 other reasons"
