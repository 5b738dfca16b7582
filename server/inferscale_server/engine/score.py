"""The scorer: log probabilities of a given answer behind a question's prompt, computed by the serving engine itself.

The prompt is planned as a chat's is: same facts, same order, same token ids in every mode; mode off leaves the facts
out of it. The answer is forced and not generated: its tokens' probabilities are vLLM's `prompt_logprobs`, of which only
positions past the injected ones are read, since vLLM computes no others. An answer of the model's own is generated
behind the very same ids. Cold facts are staged, as long as that takes. Knows vLLM through the door alone.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from inferscale_server.command import PARAMS_KEY, Command
from inferscale_server.edge.scoring import Ending, ScoreAsk, ScoredToken, ScoreReply
from inferscale_server.errors import InvalidRequest, Unavailable
from inferscale_server.plan import Frame, MemoryPlan, plan_memory
from inferscale_server.recall import Recall, Recollection
from inferscale_server.staging import Wanted

STAGE_PATIENCE_S = 60.0
"""No chat waits here: facts may come up from host memory and disk for much longer than a chat's deadline."""
STAGE_TRIES = 3
"""Questions that are scored at once may take rows from each other before they hold them."""
LOGPROB_DIGITS = 5
"""Far below what bfloat16 can tell apart; keeps an answer's distributions short on the wire."""


class FlatLogprobs(Protocol):
    """vLLM's, of one prompt: position p's tokens lie at start_indices[p] … end_indices[p]-1, its own token first."""

    start_indices: Sequence[int]
    end_indices: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]


class Output(Protocol):
    """The part of vLLM's RequestOutput that is read here. Positions that were not computed hold rubbish."""

    prompt_logprobs: Any
    outputs: Sequence[Any]
    num_cached_tokens: int | None
    kv_transfer_params: dict[str, Any] | None


class Engine(Protocol):
    """The door, as the scorer sees it."""

    async def forced(self, prompt_ids: Sequence[int], command: Command | None, salt: str, top: int | None) -> Output:
        """See EngineDoor."""

    async def greedy(self, prompt_ids: Sequence[int], command: Command | None, salt: str, max_tokens: int) -> Output:
        """See EngineDoor."""


class Staging(Protocol):
    """The stager, as the scorer sees it."""

    async def stage(self, wanted: Sequence[Wanted], patience_s: float | None = None) -> object:
        """See Stager."""


class Framing(Protocol):
    """The framer, as the scorer sees it."""

    async def question(self, model: str, text: str) -> Frame | None:
        """See Framer."""


@dataclass(frozen=True, slots=True)
class Forced:
    """One ending as tokens: those that only lead in, and those that are scored."""

    lead_in: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Both, in order."""
        return (*self.lead_in, *self.answer)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one request of the engine said: nothing of an answer whose first position came out of the prefix cache."""

    tokens: tuple[ScoredToken, ...]
    covered: int


class EngineScorer:
    """Scores answers. One a server; any number at once."""

    def __init__(
        self,
        model: str,
        recall: Recall,
        engine: Engine,
        framing: Framing,
        stager: Staging,
        max_model_len: int,
        max_top: int,
    ) -> None:
        """`max_top` is vLLM's `--max-logprobs`, where -1 means any number."""
        self._model, self._recall, self._engine, self._framing = model, recall, engine, framing
        self._stager, self._max_model_len, self._max_top = stager, max_model_len, max_top

    async def score(self, ask: ScoreAsk) -> ScoreReply:
        """Raises InvalidRequest, and Unavailable when kv was asked for and could not be injected as planned."""
        if -1 < self._max_top < ask.top:
            raise InvalidRequest(f"top: this server names at most {self._max_top} tokens", param="top")
        forced = [self._forced(ending) for ending in ask.endings]
        frame = await self._framing.question(self._model, ask.question)
        if frame is None:
            raise InvalidRequest("the chat template does not let memory stand in the system message")
        plan = await self._plan(ask, frame, max(ask.answer_tokens, *(len(one.token_ids) for one in forced)))
        with self._recall.catalog.pinned(plan.chunks):
            scored = await self._score(plan, forced, ask.top)
            answer = await self._answer(plan, ask.answer_tokens) if ask.answer_tokens else None
        injected = min(one.covered for one in scored)
        frame_injected = len(plan.chunks[0].token_ids) if plan.chunks else 0
        return ScoreReply(
            mode=ask.mode,
            facts=len(plan.lines),
            prompt_digest=_digest(plan),
            prompt_tokens=len(plan.prompt_ids),
            memory_tokens=plan.memory_tokens,
            memory_as_text=plan.memory_tokens - max(injected - frame_injected, 0),
            injected_tokens=injected,
            endings=tuple(one.tokens for one in scored),
            frame_digest=_digest(_without_facts(frame)),
            answer=answer,
        )

    def _forced(self, ending: Ending) -> Forced:
        forced = Forced(self._recall.tokenize(ending.lead_in), self._recall.tokenize(ending.answer))
        if not forced.answer:
            raise InvalidRequest("an answer has no tokens", param="endings")
        return forced

    async def _plan(self, ask: ScoreAsk, frame: Frame, ending_tokens: int) -> MemoryPlan:
        room = self._max_model_len - len(frame.before) - len(frame.after) - ending_tokens - 1
        if ask.mode == "off":
            return _without_facts(frame)
        found = await self._recall.find(ask.owner, ask.question, ask.k, None, ())
        if ask.mode == "text":
            plan = self._recall.plan(found, frame, "text", room)
        else:
            plan = await self._staged_plan(found, frame, room)
        if not plan.lines:
            raise InvalidRequest("this user has no fact that fits into the prompt", param="user_id")
        if ask.mode == "kv" and not _whole(plan):
            raise Unavailable(f"the memory is not all encoded: {plan.reason}", code="not_injected")
        return plan

    async def _staged_plan(self, found: Recollection, frame: Frame, room: int) -> MemoryPlan:
        """With all that can be injected in the slab, wherever it lay; to be held before anything else is awaited."""
        for _ in range(STAGE_TRIES):
            wanted = self._recall.wanted(found, frame, self._recall.lines(found, room), "kv", None)
            await self._stager.stage(wanted, STAGE_PATIENCE_S)
            plan = self._recall.plan(found, frame, "kv", room)
            if _whole(plan):
                break
        return plan

    async def _answer(self, plan: MemoryPlan, max_tokens: int) -> str:
        """The model's own, behind the plan's very prompt."""
        command = None if plan.injection is None else Command(plan.injection)
        output = await self._engine.greedy(plan.prompt_ids, command, secrets.token_hex(32), max_tokens)
        _check_covered(plan, _covered(output))
        return str(output.outputs[0].text)

    async def _score(self, plan: MemoryPlan, forced: Sequence[Forced], top: int) -> list[Pass]:
        """KV: each ending under a salt of its own, so that all that is planned is injected anew. Text: the endings
        share the prompt's blocks, which are computed first, because probabilities of a whole prompt are costly."""
        salt = None
        if plan.injection is None and plan.lines:
            salt = secrets.token_hex(32)
            await self._pass(plan, Forced((), ()), salt, None)
        return list(await asyncio.gather(*(self._ending(plan, one, salt, top) for one in forced)))

    async def _ending(self, plan: MemoryPlan, forced: Forced, salt: str | None, top: int) -> Pass:
        scored = await self._pass(plan, forced, salt or secrets.token_hex(32), top)
        if not scored.tokens:  # another ending that begins alike had left a block
            scored = await self._pass(plan, forced, secrets.token_hex(32), top)
        _check_covered(plan, scored.covered)
        return scored

    async def _pass(self, plan: MemoryPlan, forced: Forced, salt: str, top: int | None) -> Pass:
        """One request. Without `top`: only computes the prompt's blocks, all but its last token."""
        token_ids = (*plan.prompt_ids, *forced.token_ids) if top is not None else plan.prompt_ids[:-1]
        command = None if plan.injection is None else Command(plan.injection)
        output = await self._engine.forced(token_ids, command, salt, top)
        covered = _covered(output)
        first = len(plan.prompt_ids) + len(forced.lead_in)
        if top is None or (output.num_cached_tokens or 0) >= first:
            return Pass((), covered)
        return Pass(_tokens(output.prompt_logprobs, token_ids, first), covered)


def _without_facts(frame: Frame) -> MemoryPlan:
    return plan_memory(frame, (), None, "text", None)


def _whole(plan: MemoryPlan) -> bool:
    return plan.injection is not None and plan.reason == "encoded"


def _covered(output: Output) -> int:
    return int((output.kv_transfer_params or {}).get(PARAMS_KEY, {}).get("covered", 0))


def _check_covered(plan: MemoryPlan, covered: int) -> None:
    planned = plan.injected_tokens
    if covered < planned:
        raise Unavailable(f"only {covered} of {planned} planned tokens were injected", code="not_injected")


def _digest(plan: MemoryPlan) -> str:
    return sha256(array("q", plan.prompt_ids).tobytes()).hexdigest()[:16]


def _tokens(flat: FlatLogprobs, token_ids: Sequence[int], first: int) -> tuple[ScoredToken, ...]:
    """Positions `first` … of a prompt."""
    return tuple(_token(flat, position, token_ids[position]) for position in range(first, len(token_ids)))


def _token(flat: FlatLogprobs, position: int, token_id: int) -> ScoredToken:
    start, stop = flat.start_indices[position], flat.end_indices[position]
    ids, logprobs = flat.token_ids[start:stop], [round(one, LOGPROB_DIGITS) for one in flat.logprobs[start:stop]]
    assert ids[0] == token_id, f"position {position} is token {ids[0]}, not {token_id}"
    return ScoredToken(token_id, logprobs[0], tuple(ids[1:]), tuple(logprobs[1:]))
