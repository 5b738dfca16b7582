"""`bench accuracy`: one server after another, a variant each, into one ledger; then the figures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.bench.accuracy.case import Haystack, digest_of
from inferscale_server.bench.accuracy.failure import Failure
from inferscale_server.bench.accuracy.judge import Judge
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.bench.accuracy.measure import Measuring, Progress, missing_of
from inferscale_server.bench.accuracy.opinion import LEAD_INS
from inferscale_server.bench.accuracy.served import ANSWER_TOKENS, Machine, ServedModel
from inferscale_server.bench.accuracy.variant import Variant
from inferscale_server.bench.accuracy.verdicts import judge_missing
from inferscale_server.bench.server_process import ServerChoice, check_injects, vllm_args_of
from inferscale_server.demo.server import Report, server_at, sigterm_unwinds
from inferscale_server.demo.start_log import log_folder

ANSWERED = "behind the same prompt; F1 over stems"
"""How answers are generated and compared; answers of an earlier version are not averaged with these."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. `top`: how many of the likeliest tokens are asked for; `threads`: questions at once."""

    ks: tuple[int, ...]
    top: int
    threads: int
    answers: bool = False
    judge: Judge | None = None


def settings_of(plan: Plan, choice: ServerChoice, haystacks: Sequence[Haystack]) -> dict[str, object]:
    """What rows depend on, besides their own keys and the variant's fingerprint."""
    return {
        "questions": digest_of(haystacks),
        "lead_ins": [[one.text, one.glue] for one in LEAD_INS],
        "top": plan.top,
        "model": choice.model,
        "dtype": choice.dtype if choice.base_url is None else "as served",
        "vllm_args": list(choice.vllm_args),
        "answers": plan.answers,
        "answered": ANSWERED if plan.answers else None,
        "judge": None if plan.judge is None else plan.judge.model,
    }


def missing_count(plan: Plan, variants: Sequence[Variant], haystacks: Sequence[Haystack], ledger: Ledger) -> int:
    """How many questions times numbers of facts are still to be measured."""
    missing = [ask for one in variants for of in haystacks for ask in missing_of(of, plan.ks, one.name, ledger)]
    return sum(len(ask.ks) for ask in missing)


def measure_all(
    plan: Plan,
    choice: ServerChoice,
    variants: Sequence[Variant],
    haystacks: Sequence[Haystack],
    ledger: Ledger,
    progress: Progress,
    api_key: str | None = None,
    machine: Machine = lambda client: {},
) -> list[Failure]:
    """Measure what the ledger lacks, a server a variant, and have it judged; returns what failed.

    Raises StartupError when a server does not come up, Unavailable when it cannot inject, ConfigError.
    """
    failed: list[Failure] = []
    for variant in variants:
        if not any(missing_of(haystack, plan.ks, variant.name, ledger) for haystack in haystacks):
            continue
        with served(choice, variant, plan, api_key, machine, progress.tell) as model:
            failed += Measuring(model, variant.name, ledger).run(haystacks, plan.ks, plan.threads, progress)
    if plan.judge is not None:
        progress.tell("asking the judge")
        failed += judge_missing(plan.judge, ledger, haystacks, plan.threads)
    return failed


@contextmanager
def served(
    choice: ServerChoice, variant: Variant, plan: Plan, api_key: str | None, machine: Machine, tell: Report
) -> Iterator[ServedModel]:
    """The server that runs at `choice.base_url`, else one of our own with this variant's options."""
    from inferscale_sdk import InferScaleClient

    with _address(choice, variant, plan.top, tell) as url, InferScaleClient(base_url=url, api_key=api_key) as client:
        check_injects(client)
        model = ServedModel(client, client.base_url, api_key, plan.top, ANSWER_TOKENS if plan.answers else 0, machine)
        try:
            yield model
        finally:
            model.close()


@contextmanager
def _address(choice: ServerChoice, variant: Variant, top: int, tell: Report) -> Iterator[str]:
    if choice.base_url is not None:
        with sigterm_unwinds():  # a user that is left behind keeps its room
            yield choice.base_url
        return
    vllm_args = (*vllm_args_of(choice), "--max-logprobs", str(top))
    with (
        sigterm_unwinds(),
        log_folder() as logs,
        tempfile.TemporaryDirectory(prefix="inferscale-bench-") as data,
        server_at(Path(data), logs / "server.log", vllm_args, tell, choice.model, variant.options) as url,
    ):
        yield url
