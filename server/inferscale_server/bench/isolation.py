"""`bench isolation`: can a user tell by the time to first token what another user's memory says? (PROMISES S3)

In each trial a victim asks about a fact of its own, which leaves blocks in vLLM's prefix cache. Then an attacker sends
two guesses as memory of its own, the victim's fact and a random one that reads alike, and both are timed. The control
guesses under the victim's own user, who shares that cache: a server whose salts were the same for all would look like
that, so the same clock must tell the two guesses apart there. A switch that turns salts off does not exist.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from inferscale_server.bench.auc import Auc, auc_of
from inferscale_server.bench.encoding import wait_encoded
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

Side = Literal["attacker", "control"]
SIDES: tuple[Side, ...] = ("attacker", "control")
QUESTION = "What is the code of the safe?"
CODE_GROUPS = 40
"""Groups of eight letters in a fact: about 200 tokens, whose prefill takes longer than a machine's hiccups."""
WARM_UP_TRIALS = 3
AUC_MARGIN = 0.05
"""How far from 0.5 the attacker's may lie, or three standard errors, for few trials."""
CONTROL_ABOVE = 0.9


@dataclass(frozen=True, slots=True)
class Guess:
    """One timed guess; `right` is the victim's fact.

    `ttft_ms` runs from sending to the first piece of the answer; `cached`: some of the memory was not computed.
    """

    side: Side
    right: bool
    ttft_ms: float
    cached: bool


@dataclass(frozen=True, slots=True)
class IsolationRun:
    """All guesses that count, and how well the time tells right from wrong on each side."""

    guesses: tuple[Guess, ...]
    attacker: Auc
    control: Auc
    failures: tuple[str, ...] = ()
    """What of the trials failed; none of their guesses is counted."""

    @property
    def shared(self) -> int:
        """Guesses of the attacker that were served from a cache, which can only be somebody else's."""
        return sum(guess.cached for guess in self.guesses if guess.side == "attacker")

    @property
    def complaints(self) -> list[str]:
        """What is wrong with the server, or with the measurement."""
        found = [*self.failures]
        margin = max(AUC_MARGIN, 3 * self.attacker.error)
        if abs(self.attacker.value - 0.5) > margin:
            found.append(f"the time tells an attacker the right guess: AUC {self.attacker.value:.3f}")
        if self.shared:
            found.append(f"{self.shared} guesses were served from another user's cache")
        if self.control.value < CONTROL_ABOVE:
            found.append(f"void: the control's AUC is {self.control.value:.3f}, this clock would not see a leak")
        return found


def run_isolation(client: InferScaleClient, trials: int, tell: Report) -> IsolationRun:
    """Store a fact for each of `trials` victims, then guess it. Removes what it stored. Raises the SDK's errors; of the
    trials' own only when most of them fail."""
    attacker, facts = new_user(), [secret() for _ in range(trials + WARM_UP_TRIALS)]
    victims, losses = [new_user() for _ in facts], Losses()
    try:
        tell(f"storing {len(facts)} victims' facts")
        for victim, fact in zip(victims, facts, strict=True):
            client.memories.add(victim, facts=[{"text": fact}])
        wait_encoded(client, tell)
        found: list[Guess] = []
        for at, (victim, fact) in enumerate(zip(victims, facts, strict=True)):
            tell(f"trial {at + 1} of {len(facts)}")
            counts = at >= WARM_UP_TRIALS
            guesses = losses.tried("trials" if counts else WARM_UP, partial(trial, client, attacker, victim, fact, at))
            found += guesses if guesses and counts else []
        losses.check("trials")
    finally:
        tell("removing the victims' facts")
        for victim in victims:
            client.memories.delete_all(victim)
    return summary(found, losses.complaints)


def trial(client: InferScaleClient, attacker: str, victim: str, fact: str, at: int) -> list[Guess]:
    """The victim's question, then a right and a wrong guess on each side; sides and guesses take turns."""
    client.chat(victim, QUESTION, memory={"mode": "text", "k": 1}, temperature=0, max_tokens=1)
    guesses = []
    for side in SIDES if at % 2 else SIDES[::-1]:
        user = attacker if side == "attacker" else victim
        for right in (True, False) if (at // 2) % 2 else (False, True):
            guesses.append(guess(client, user, side, fact if right else secret(), right))
    return guesses


def guess(client: InferScaleClient, user: str, side: Side, fact: str, right: bool) -> Guess:
    """Time one guess, sent as memory that was found elsewhere: the prompt is the one that a fact of that text gives."""
    start = perf_counter()
    with client.chat(
        user,
        QUESTION,
        stream=True,
        memory={"mode": "text", "context": [fact], "min_score": 1.0},  # none of the user's own facts
        temperature=0,
        max_tokens=1,
    ) as stream:
        next(stream.text_stream, None)
        ttft_ms = 1e3 * (perf_counter() - start)
        response = stream.get_final_response()
    told = response.raw["inferscale"]
    assert isinstance(told, Mapping), f"inferscale is {told!r}"
    return Guess(side, right, ttft_ms, cached=response.prefilled_tokens < int(told["memory_tokens"]))


def secret() -> str:
    """A fact that begins unlike any other, so that two share no block."""
    return " ".join(["Safe", *(secrets.token_hex(4) for _ in range(CODE_GROUPS))])


def summary(guesses: Sequence[Guess], failures: Sequence[str] = ()) -> IsolationRun:
    """What the guesses, four a trial in the order they were made, say; `failures` is told beside it."""
    auc = {side: auc_of(times(guesses, side, right=True), times(guesses, side, right=False)) for side in SIDES}
    return IsolationRun(tuple(guesses), auc["attacker"], auc["control"], tuple(failures))


def times(guesses: Sequence[Guess], side: Side, *, right: bool) -> list[float]:
    """Milliseconds to the first token of one side's right or wrong guesses."""
    return [guess.ttft_ms for guess in guesses if guess.side == side and guess.right is right]
