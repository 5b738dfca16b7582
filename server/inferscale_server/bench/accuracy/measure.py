"""The run: for each user take the facts in, ask each question in each mode, let the user go; skip what the ledger has.

Off and text are measured once for each prompt, whichever variant asks for it first: variants differ in how the very
same token ids are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from inferscale_server.bench.accuracy.answer_f1 import answer_f1
from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.accuracy.failure import Failure
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.bench.accuracy.opinion import Opinion, distance
from inferscale_server.bench.accuracy.row import Row, RowKey
from inferscale_server.bench.accuracy.served import Served
from inferscale_server.demo.server import Report
from inferscale_server.errors import InferScaleError, Unavailable


@dataclass(frozen=True, slots=True)
class Progress:
    """Who is told: `tell` what happens, `step` that so many questions are done, each for one number of facts."""

    tell: Report
    step: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question with each of these numbers of facts recalled."""

    case: Case
    ks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one question: rows in the order in which they are to be kept, and what failed."""

    rows: tuple[Row, ...]
    failed: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Measuring:
    """One variant's server, and what is asked of it."""

    served: Served
    variant: str
    ledger: Ledger

    def run(self, haystacks: Sequence[Haystack], ks: Sequence[int], threads: int, progress: Progress) -> list[Failure]:
        """Measure what is missing; returns what failed, which the next run tries again. Raises ConfigError."""
        self.ledger.serves(self.variant, self.served.about)
        failed: list[Failure] = []
        for haystack in haystacks:
            missing = missing_of(haystack, ks, self.variant, self.ledger)
            if missing:
                progress.tell(f"{self.variant}: {haystack.name}")
                failed += self._haystack(haystack, missing, threads, progress)
        return failed

    def _haystack(self, haystack: Haystack, missing: Sequence[Ask], threads: int, progress: Progress) -> list[Failure]:
        """One user's questions. The user is gone afterwards: the next one's facts need the room."""
        try:
            user = self.served.take_in(haystack.facts, progress.tell)
        except Unavailable as error:
            progress.step(sum(len(ask.ks) for ask in missing))
            return [self._failure(ask.case, k, error) for ask in missing for k in ask.ks]
        try:
            return list(self._ask_all(user, missing, threads, progress))
        finally:
            self.served.let_go(user)

    def _ask_all(self, user: str, missing: Sequence[Ask], threads: int, progress: Progress) -> Iterator[Failure]:
        pool = ThreadPoolExecutor(threads)
        try:
            asked = {pool.submit(self._question, user, ask): ask for ask in missing}
            for future in as_completed(asked):
                measured = future.result()
                progress.step(len(asked[future].ks))
                for row in measured.rows:
                    self.ledger.add(row)
                yield from measured.failed
        finally:  # whoever breaks off must not wait for all that was still to be asked
            pool.shutdown(wait=False, cancel_futures=True)

    def _question(self, user: str, ask: Ask) -> Measured:
        expected = _expected_errors()
        found: dict[RowKey, Row] = {}
        failed = []
        for k in ask.ks:
            try:
                for row in self._rows(user, ask.case, k, found):
                    found[row.key] = row
            except expected as error:
                failed.append(self._failure(ask.case, k, error))
        return Measured(tuple(found.values()), tuple(failed))

    def _rows(self, user: str, case: Case, k: int, found: dict[RowKey, Row]) -> list[Row]:
        """The kv row, behind those that it is compared with, as far as these are new: a kv row never stands alone."""
        thought = self.served.opinion(user, case, "kv", k)
        if thought.injected_tokens <= 0 or thought.memory_as_text >= thought.memory_tokens:
            raise Unavailable("nothing of the memory was injected")
        kv = self._row(case, "kv", k, thought)
        rows = []
        if self._known(kv.off_key, found) is None:
            rows.append(
                self._same_prompt(kv.off_key, self._row(case, "off", 0, self.served.opinion(user, case, "off", 0)))
            )
        text = self._known(kv.text_key, found)
        if text is None:
            told = self.served.opinion(user, case, "text", k)
            text = replace(self._row(case, "text", k, told), distributions=told.distributions)
            rows.append(self._same_prompt(kv.text_key, text))
        far = distance(text.distributions, thought.distributions)
        return [*rows, replace(kv, kl=far.kl, agreement=far.agreement)]

    def _known(self, key: RowKey, found: dict[RowKey, Row]) -> Row | None:
        return found.get(key) or self.ledger.get(key)

    @staticmethod
    def _same_prompt(key: RowKey, row: Row) -> Row:
        if row.key != key:
            raise Unavailable(f"{row.mode} and kv had different prompts")
        return row

    def _row(self, case: Case, mode: str, k: int, thought: Opinion) -> Row:
        answer = thought.answer
        return Row(
            case=case.key,
            category=case.category,
            mode=mode,
            variant=self.variant,
            k=k,
            digest=thought.prompt_digest,
            facts=thought.facts,
            memory_tokens=thought.memory_tokens,
            memory_as_text=thought.memory_as_text,
            injected_tokens=thought.injected_tokens,
            nll=thought.nll,
            answer=answer,
            f1=None if answer is None else answer_f1(answer, case.answer, case.category),
            frame_digest=thought.frame_digest,
        )

    def _failure(self, case: Case, k: int, error: Exception) -> Failure:
        return Failure(case.key, self.variant, k, str(error))


def missing_of(haystack: Haystack, ks: Sequence[int], variant: str, ledger: Ledger) -> list[Ask]:
    """What of a haystack is not in the ledger yet, with all that it is compared with: a broken-off run has whole
    questions, and one that lost a row has it measured again."""
    asks = [Ask(case, tuple(k for k in ks if not ledger.whole(case.key, variant, k))) for case in haystack.cases]
    return [ask for ask in asks if ask.ks]


def _expected_errors() -> tuple[type[Exception], ...]:
    from inferscale_sdk import InferScaleError as ClientError

    return (InferScaleError, ClientError)
