"""`bench equivalence`: one chunk that holds the whole memory, injected, answers like the same prompt computed.

A chunk behind the header alone sees all that it would see in the prompt, so that nothing but rounding may differ. The
text comes as `memory.context` of a user without facts: with facts, it would be encoded behind some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inferscale_server.bench.agreement import Agreement, Token, compare, read_tokens
from inferscale_server.bench.conversation import Conversation, DatedFact
from inferscale_server.bench.encoding import queue, wait_encoded
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report
from inferscale_server.errors import Unavailable
from inferscale_server.limits import MAX_FACT_CHARS
from inferscale_server.wording import fact_line

if TYPE_CHECKING:
    from inferscale_sdk import ChatResponse, InferScaleClient

PROMPTS = 20
ANSWER_TOKENS = 16
TOP_LOGPROBS = 5
KV_AGAINST_TEXT = "kv against text"
KV_TWICE = "kv, second time"


def run_equivalence(
    client: InferScaleClient, conversation: Conversation, prompts: int, tell: Report
) -> list[Agreement]:
    """Ask each question as text, as KV, and as KV again. Raises Unavailable when the memory is not injected."""
    user, context = new_user(), whole_memory(conversation.facts)
    questions = [question.text for question in conversation.questions[:prompts]]
    encode_context(client, user, questions[0], context, tell)
    found: list[Agreement] = []
    for at, question in enumerate(questions, 1):
        tell(f"comparing answers {at} of {len(questions)}")
        text = tokens_of(ask(client, user, question, context, "text"))
        kv, again = (injected_tokens_of(ask(client, user, question, context, "kv")) for _ in range(2))
        found += [compare(KV_AGAINST_TEXT, question, kv, text), compare(KV_TWICE, question, again, kv)]
    return found


def whole_memory(facts: Iterable[DatedFact]) -> str:
    """The facts as one text, as many from the start as one chunk may hold characters."""
    lines: list[str] = []
    room = MAX_FACT_CHARS
    for fact in facts:
        line = fact_line(fact.text, fact.speaker, fact.said_at.timestamp() if fact.said_at else None).strip()
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return " ".join(lines)


def encode_context(client: InferScaleClient, user: str, question: str, context: str, tell: Report) -> None:
    """Have the context encoded: it is text on first use. Raises Unavailable when it does not become KV."""
    before = queue(client).results
    ask(client, user, question, context, "kv")
    wait_encoded(client, tell)
    response = ask(client, user, question, context, "kv")
    if response.mode != "kv" or response.kv_source.get("text"):
        results = dict(queue(client).results - before)
        raise Unavailable(f"the memory was not encoded as one chunk ({response.reason}; encoder: {results})")


def ask(client: InferScaleClient, user: str, question: str, context: str, mode: str) -> ChatResponse:
    """One greedy answer with logprobs."""
    return client.chat(
        user,
        question,
        memory={"mode": mode, "context": [context]},
        temperature=0,
        max_tokens=ANSWER_TOKENS,
        logprobs=True,
        top_logprobs=TOP_LOGPROBS,
    )


def injected_tokens_of(response: ChatResponse) -> Sequence[Token]:
    """The tokens of an answer whose memory was all injected. Raises Unavailable when it was not."""
    if response.mode != "kv" or response.kv_source.get("text"):
        raise Unavailable(f"an answer in mode kv was served as {response.mode} ({response.reason})")
    return tokens_of(response)


def tokens_of(response: ChatResponse) -> Sequence[Token]:
    """The tokens of an answer. Raises Unavailable when the server sent no logprobs."""
    return read_tokens(response.choices[0].logprobs)
