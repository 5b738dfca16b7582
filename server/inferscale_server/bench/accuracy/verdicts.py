"""The judge's verdicts on generated answers. They come after the measuring, so that a judge that fails costs no row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from inferscale_server.bench.accuracy.case import Haystack
from inferscale_server.bench.accuracy.failure import Failure
from inferscale_server.bench.accuracy.judge import Judge
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.errors import Unavailable


def judge_missing(judge: Judge, ledger: Ledger, haystacks: Sequence[Haystack], threads: int) -> Iterator[Failure]:
    """Judge every answer to these questions that has no verdict yet; yields what failed, which the next run tries
    again: the answer's row stays, without a verdict."""
    cases = {case.key: case for haystack in haystacks for case in haystack.cases}
    waiting = [row for row in ledger.rows if row.case in cases and row.answer is not None and row.right is None]
    pool = ThreadPoolExecutor(threads)
    try:
        asked = {pool.submit(judge.finds_right, cases[row.case], row.answer or ""): row for row in waiting}
        for future in as_completed(asked):
            row = asked[future]
            try:
                ledger.add(replace(row, right=future.result()))
            except Unavailable as error:
                yield Failure(row.case, f"{row.mode} of {row.variant}", row.k, str(error))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
