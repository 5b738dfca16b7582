"""The run: for each user take the facts in, then ask each question in each mode; skip what the ledger has.

Text is measured once for each prompt, whichever variant asks for it first: variants differ in how the very same token
ids are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from inferscale_server.bench.accuracy.answer_f1 import answer_f1
from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.accuracy.failure import Failure
from inferscale_server.bench.accuracy.judge import Judge
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.bench.accuracy.opinion import Opinion, distance
from inferscale_server.bench.accuracy.row import Row, RowKey
from inferscale_server.bench.accuracy.served import Served
from inferscale_server.demo.server import Report
from inferscale_server.errors import InferScaleError, Unavailable

OFF_K = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Who is told: `tell` what happens, `step` that one more question is done in one mode and number of facts."""

    tell: Report
    step: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Measuring:
    """One variant's server, and what is asked of it. `answers`: also have it answer by itself."""

    served: Served
    variant: str
    ledger: Ledger
    answers: bool = False
    judge: Judge | None = None

    def run(self, haystacks: Sequence[Haystack], ks: Sequence[int], threads: int, progress: Progress) -> list[Failure]:
        """Measure what is missing; returns what failed, which the next run tries again. Raises ConfigError."""
        self.ledger.serves(self.variant, self.served.fingerprint)
        failed: list[Failure] = []
        for haystack in haystacks:
            missing = missing_of(haystack, ks, self.variant, self.ledger)
            if missing:
                progress.tell(f"{self.variant}: {haystack.name}")
                user = self.served.take_in(haystack.facts, progress.tell)
                failed += self._ask_all(user, missing, threads, progress)
        return failed

    def _ask_all(self, user: str, missing: Sequence[Ask], threads: int, progress: Progress) -> Iterator[Failure]:
        expected = _expected_errors()
        pool = ThreadPoolExecutor(threads)
        try:
            asked = {pool.submit(self._rows, user, ask): ask for ask in missing}
            for future in as_completed(asked):
                progress.step(1)
                try:
                    for row in future.result():
                        self.ledger.add(row)
                except expected as error:
                    ask = asked[future]
                    yield Failure(ask.case.key, self.variant, ask.k, str(error))
        finally:  # whoever breaks off must not wait for all that was still to be asked
            pool.shutdown(wait=False, cancel_futures=True)

    def _rows(self, user: str, ask: Ask) -> list[Row]:
        """The rows of one question and one number of facts; off has a number of facts of its own."""
        if ask.k == OFF_K:
            return [self._row(user, ask, "off", self._opinion(user, ask, "off"))]
        thought = self._opinion(user, ask, "kv")
        if thought.injected_tokens <= 0:
            raise Unavailable("nothing was injected")
        kv = self._row(user, ask, "kv", thought)
        text, rows = self.ledger.text_of(kv), [kv]
        if text is None:
            text = self._text(user, ask)
            rows.append(text)
        if text.digest != kv.digest:
            raise Unavailable("text and kv had different prompts")
        far = distance(text.distributions, thought.distributions)
        rows[0] = replace(kv, kl=far.kl, agreement=far.agreement)
        return rows

    def _text(self, user: str, ask: Ask) -> Row:
        thought = self._opinion(user, ask, "text")
        return replace(self._row(user, ask, "text", thought), distributions=thought.distributions)

    def _opinion(self, user: str, ask: Ask, mode: str) -> Opinion:
        return self.served.opinion(user, ask.case, mode, ask.k)

    def _row(self, user: str, ask: Ask, mode: str, thought: Opinion) -> Row:
        row = Row(
            case=ask.case.key,
            category=ask.case.category,
            mode=mode,
            variant=self.variant,
            k=ask.k,
            digest=thought.prompt_digest,
            facts=thought.facts,
            memory_tokens=thought.memory_tokens,
            memory_as_text=thought.memory_as_text,
            injected_tokens=thought.injected_tokens,
            nll=thought.nll,
        )
        return self._answered(user, ask.case, row) if self.answers else row

    def _answered(self, user: str, case: Case, row: Row) -> Row:
        answer = self.served.answer(user, case.question, row.mode, row.k)
        right = self.judge.finds_right(case, answer) if self.judge is not None else None
        return replace(row, answer=answer, f1=answer_f1(answer, case.answer, case.category), right=right)


@dataclass(frozen=True, slots=True)
class Ask:
    """One question with this many facts recalled."""

    case: Case
    k: int


def missing_of(haystack: Haystack, ks: Sequence[int], variant: str, ledger: Ledger) -> list[Ask]:
    """What of a haystack is not in the ledger yet, question by question: a run broken off has whole questions."""
    wanted = []
    for case in haystack.cases:
        wanted.append((Ask(case, OFF_K), RowKey(case.key, "off", OFF_K, "")))
        wanted += [(Ask(case, k), RowKey(case.key, "kv", k, variant)) for k in ks]
    return [ask for ask, key in wanted if key not in ledger]


def _expected_errors() -> tuple[type[Exception], ...]:
    from inferscale_sdk import InferScaleError as ClientError

    return (InferScaleError, ClientError)
