"""`bench tiers`: a chat whose memory is not on the device any more, beside the same memory as text.

Many users with as many facts as are recalled share a slab that holds a few of them. Each is asked once, since only what
a chat wants evicts others. Who was asked long ago was evicted, and is asked again first: so all of a user's memory is
cold at once, which it seldom is in use.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.comparator import ServerMemory
from inferscale_server.bench.conversation import Conversation
from inferscale_server.bench.encoding import POLL_S, TIMEOUT_S, take_in, wait_encoded
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.probe import Probe, different_questions
from inferscale_server.bench.sample import Sample
from inferscale_server.bench.tier_cell import (
    ANSWERS,
    COLD,
    OFF,
    TEXT,
    WARM,
    TierCell,
    cold_cost_ms,
    tier_cells,
    tier_complaints,
    tier_ratios,
)
from inferscale_server.bench.ttft import new_user, take_sample
from inferscale_server.demo.server import Report
from inferscale_server.errors import Unavailable

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

ColdTier = Literal["disk", "host"]
QUESTIONS_A_USER = 4
"""One that has the memory encoded; text; cold, and the same without memory; warm."""


@dataclass(frozen=True, slots=True)
class Trial:
    """So many users whose memory is looked for in this tier, k facts recalled."""

    tier: ColdTier
    users: int
    k: int


@dataclass(frozen=True, slots=True)
class TiersRun:
    """What `bench tiers` found out. `cold_cost_ms` is what a cold answer takes longer than a warm one."""

    trial: Trial
    cells: tuple[TierCell, ...]
    ratios: tuple[Ratio, ...]
    cold_cost_ms: float | None
    complaints: tuple[str, ...]
    samples: dict[str, list[Sample]]


def questions_of(trial: Trial) -> int:
    """How many different questions a run asks."""
    return QUESTIONS_A_USER * (trial.users + 1)


def run_tiers(client: InferScaleClient, conversation: Conversation, trial: Trial, tell: Report) -> TiersRun:
    """Load the conversation for every user, then ask each whose memory is cold.

    Raises ConfigError, Unavailable when the server has no such tier, and the SDK's errors when most answers of one kind
    fail; a few are counted.
    """
    check_tier(client, trial.tier)
    questions = different_questions([one.text for one in conversation.questions], questions_of(trial))
    warm_up, *users = (new_user() for _ in range(trial.users + 1))
    asked, losses = iter(questions), Losses()
    for user in (warm_up, *users):
        take_in(client, user, conversation.facts, tell)
        first = Probe(trial.k, "kv", next(asked))
        losses.tried(WARM_UP, partial(take_sample, client, ServerMemory(user, "kv"), first))
        wait_encoded(client, tell)
    wait_copied(client, trial.tier, tell)
    samples: defaultdict[str, list[Sample]] = defaultdict(list)
    for answer, take in answers_of(client, warm_up, trial.k, asked, tell):
        if (sample := losses.tried(WARM_UP, take)) is not None:
            tell(f"warming up: {answer} took {sample.ttft_ms:.0f} ms")
    for at, user in enumerate(users, 1):
        if not is_cold(client, user, trial.tier):
            continue
        tell(f"asking user {at} of {trial.users}")
        for answer, take in answers_of(client, user, trial.k, asked, tell):
            if (sample := losses.tried(answer, take)) is not None:
                samples[answer].append(sample)
    for answer in ANSWERS:
        losses.check(answer)
    return summary(trial, samples, losses)


def answers_of(
    client: InferScaleClient, user: str, k: int, questions: Iterator[str], tell: Report
) -> Iterator[tuple[str, Callable[[], Sample]]]:
    """One user's answers, by what they are called: as text, without memory, cold, and warm when all was brought up.

    Each is to be taken before the next is asked for.
    """
    as_text, as_kv, again = next(questions), next(questions), next(questions)
    for answer, mode, question in ((TEXT, "text", as_text), (OFF, "off", as_kv), (COLD, "kv", as_kv)):
        yield answer, partial(take_sample, client, ServerMemory(user, mode), Probe(k, mode, question))
    wait_encoded(client, tell)
    yield WARM, partial(take_sample, client, ServerMemory(user, "kv"), Probe(k, "kv", again))


def check_tier(client: InferScaleClient, tier: ColdTier) -> None:
    """Raises Unavailable when the server has it not."""
    if not client.status().raw.get(tier):
        raise Unavailable(f"this server has no tier '{tier}': start it with --kv-{tier}-gib")


def wait_copied(client: InferScaleClient, tier: ColdTier, tell: Report) -> None:
    """Return when nothing waits to be copied into the tier. Raises Unavailable."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        told = client.status().raw[tier]
        assert isinstance(told, dict), f"status.{tier} is {told!r}"
        if not told.get("waiting"):
            return
        tell(f"copying: {told['waiting']} chunks wait for the {tier}")
        time.sleep(POLL_S)
    raise Unavailable(f"chunks still wait to be copied to the {tier} after {TIMEOUT_S:.0f} s")


def is_cold(client: InferScaleClient, user: str, tier: ColdTier) -> bool:
    """Is all of the user's KV in this tier, and none on the device?"""
    held = client.footprint(user).bytes
    return not held.get("device") and bool(held.get(tier))


def summary(trial: Trial, samples: dict[str, list[Sample]], losses: Losses) -> TiersRun:
    """Cells, ratios and complaints of the samples, by what answers are called."""
    cells: Sequence[TierCell] = tier_cells(samples, losses)
    return TiersRun(
        trial,
        tuple(cells),
        tuple(tier_ratios(cells, trial.tier)),
        cold_cost_ms(cells),
        (*tier_complaints(samples, trial.tier, trial.users), *losses.complaints),
        dict(samples),
    )
