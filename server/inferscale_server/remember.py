"""The verb remember: what a client wrote, to drafts, to facts that can be found.

Knows: which requests are acceptable and in which order a write becomes visible. Refuses to know: HTTP, models, KV.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.facts import FactStore
from inferscale_server.index import VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.limits import (
    MAX_FACT_CHARS,
    MAX_FACTS_PER_REQUEST,
    MAX_ID_CHARS,
    MAX_MESSAGES_PER_REQUEST,
    MAX_METADATA_BYTES,
    MAX_SPEAKER_CHARS,
)
from inferscale_server.types import AddOutcome, Fact, FactDraft, Owner

FACT_KEYS = frozenset({"text", "speaker", "timestamp", "session_id", "metadata"})
REMEMBERED_ROLES = frozenset({"user", "assistant"})
SKIPPED_ROLES = frozenset({"system", "developer", "tool", "function"})
EARLIEST, LATEST = -62_135_596_800.0, 253_402_300_799.0
"""Years 1 to 9999, in Unix seconds: refuses, among others, milliseconds taken for seconds."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What became of each draft, and the facts that can be found since this write, oldest first."""

    outcomes: tuple[AddOutcome, ...]
    facts: tuple[Fact, ...]


def remember(
    store: FactStore,
    index: VectorIndex,
    known: KnownFacts,
    owner: Owner,
    drafts: Sequence[FactDraft],
    vectors: npt.NDArray[np.float32],
) -> Remembered:
    """Commit drafts with their vectors (float32 [drafts, dimension]), then make them readable, then findable.

    Runs in the one writer thread. Raises what FactStore.add raises, with nothing stored.
    """
    outcomes = store.add(owner, drafts, vectors)
    rows: dict[str, int] = {}
    for row, outcome in enumerate(outcomes):
        # Whatever its status: a duplicate can be a fact whose first commit was reported as failed, though it was not.
        if outcome.id is not None and known.get(owner, outcome.id) is None:
            rows.setdefault(outcome.id, row)
    facts = tuple(sorted(store.get_many(owner, rows).values(), key=lambda fact: fact.seq))
    known.add(facts)
    index.add(owner, [fact.id for fact in facts], vectors[[rows[fact.id] for fact in facts]])
    return Remembered(outcomes, facts)


@dataclass(frozen=True, slots=True)
class DraftDefaults:
    """What a request says once for all of its facts or messages; each may say otherwise for itself."""

    occurred_at: float | None = None
    session_id: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


def parse_defaults(session_id: object = None, timestamp: object = None, metadata: object = None) -> DraftDefaults:
    """The request's own fields of these names. Raises InvalidRequest or TooLarge that name the field."""
    return DraftDefaults(
        occurred_at=parse_timestamp(timestamp, "timestamp"),
        session_id=None if session_id is None else parse_id(session_id, "session_id"),
        metadata=_parse_metadata(metadata, "metadata"),
    )


def drafts_from_facts(facts: object, defaults: DraftDefaults) -> tuple[FactDraft, ...]:
    """One draft for each fact: a string, or an object of text, speaker, timestamp, session_id and metadata.

    Raises InvalidRequest or TooLarge that name the field, as in `facts[3].text`.
    """
    listed = _parse_list(facts, "facts", MAX_FACTS_PER_REQUEST)
    return tuple(_draft_from_fact(fact, defaults, f"facts[{i}]") for i, fact in enumerate(listed))


def drafts_from_messages(messages: object, defaults: DraftDefaults) -> tuple[FactDraft, ...]:
    """One draft for each message of a user or an assistant; system and tool messages say nothing to remember.

    Raises InvalidRequest or TooLarge that name the field, as in `messages[3].content`.
    """
    listed = _parse_list(messages, "messages", MAX_MESSAGES_PER_REQUEST)
    drafts = (_draft_from_message(message, defaults, f"messages[{i}]") for i, message in enumerate(listed))
    return tuple(draft for draft in drafts if draft is not None)


def parse_user_id(value: object, param: str = "user_id") -> str:
    """A user id as the client wrote it, never mended: look-alikes stay different users. Raises InvalidRequest."""
    return parse_id(value, param)


def parse_id(value: object, param: str) -> str:
    """A non-empty string of at most MAX_ID_CHARS, without outer blanks and control characters, else InvalidRequest."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{param} must be a string that is not empty", param=param)
    if len(value) > MAX_ID_CHARS:
        raise InvalidRequest(f"{param} has {len(value)} characters, at most {MAX_ID_CHARS} are allowed", param=param)
    if value != value.strip():
        raise InvalidRequest(f"{param} must not begin or end with a blank", param=param)
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise InvalidRequest(f"{param} must not contain control characters", param=param)
    return value


def parse_timestamp(value: object, param: str) -> float | None:
    """Unix seconds (UTC) from a number or an ISO 8601 string, without a zone taken as UTC; None stays None.

    Raises InvalidRequest.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _parse_iso(value, param)
    if isinstance(value, bool) or not isinstance(value, int | float) or not EARLIEST <= value <= LATEST:
        raise InvalidRequest(f"{param} must be Unix seconds or an ISO 8601 string", param=param)
    return float(value)


def _parse_iso(value: str, param: str) -> float:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidRequest(f"{param} must be Unix seconds or an ISO 8601 string", param=param) from error
    zoned = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def _draft_from_fact(fact: object, defaults: DraftDefaults, param: str) -> FactDraft:
    if isinstance(fact, str):
        return _draft(fact, None, {}, defaults, param, param)
    if not isinstance(fact, Mapping):
        raise InvalidRequest(f"{param} must be a string or an object", param=param)
    unknown = sorted(str(key) for key in fact.keys() - FACT_KEYS)
    if unknown:
        raise InvalidRequest(f"{param} has an unknown key {unknown[0]!r}", param=f"{param}.{unknown[0]}")
    return _draft(fact.get("text"), fact.get("speaker"), fact, defaults, param, f"{param}.text")


def _draft_from_message(message: object, defaults: DraftDefaults, param: str) -> FactDraft | None:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{param} must be an object", param=param)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in REMEMBERED_ROLES | SKIPPED_ROLES:
        raise InvalidRequest(f"{param}.role {role!r} is not a role of a chat message", param=f"{param}.role")
    if role in SKIPPED_ROLES or (content is None and message.get("tool_calls")):
        return None
    name = message.get("name")
    speaker = role if name is None else name
    return _draft(_message_text(content, f"{param}.content"), speaker, message, defaults, param, f"{param}.content")


def _draft(
    text: object,
    speaker: object,
    own: Mapping[str, object],
    defaults: DraftDefaults,
    param: str,
    text_param: str,
) -> FactDraft:
    moment = parse_timestamp(own.get("timestamp"), f"{param}.timestamp")
    session_id = own.get("session_id")
    metadata = _mapping(own.get("metadata"), f"{param}.metadata")
    return FactDraft(
        text=_parse_text(text, text_param),
        speaker=None if speaker is None else _parse_speaker(speaker, f"{param}.speaker"),
        occurred_at=defaults.occurred_at if moment is None else moment,
        session_id=defaults.session_id if session_id is None else parse_id(session_id, f"{param}.session_id"),
        metadata=_parse_metadata({**defaults.metadata, **metadata}, f"{param}.metadata"),
    )


def _message_text(content: object, param: str) -> object:
    """The string, or the text of all parts; a part that is not text is refused rather than lost in silence."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    return "\n".join(_part_texts(content, param))


def _part_texts(parts: Sequence[object], param: str) -> Iterator[str]:
    for i, part in enumerate(parts):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(f"{param}[{i}] must be a part of type text", param=f"{param}[{i}]")
        yield text


def _parse_list(value: object, param: str, limit: int) -> Sequence[object]:
    if not isinstance(value, list | tuple) or not value:
        raise InvalidRequest(f"{param} must be a list that is not empty", param=param)
    if len(value) > limit:
        raise TooLarge(f"{param} has {len(value)} elements, at most {limit} are allowed in one request", param=param)
    return value


def _parse_text(value: object, param: str) -> str:
    """The text without outer blanks."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{param} must be a string that is not empty", param=param)
    if len(value) > MAX_FACT_CHARS:
        raise TooLarge(f"{param} has {len(value)} characters, at most {MAX_FACT_CHARS} are allowed", param=param)
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidRequest(f"{param} must not contain NUL or lone surrogates", param=param)
    return value.strip()


def _parse_speaker(value: object, param: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{param} must be a string that is not empty", param=param)
    if len(value) > MAX_SPEAKER_CHARS:
        raise TooLarge(f"{param} has {len(value)} characters, at most {MAX_SPEAKER_CHARS} are allowed", param=param)
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise InvalidRequest(f"{param} must not contain control characters", param=param)
    return value.strip()


def _mapping(value: object, param: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidRequest(f"{param} must be an object", param=param)
    return value


def _parse_metadata(value: object, param: str) -> dict[str, object]:
    metadata = dict(_mapping(value, param))
    try:
        size = len(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise InvalidRequest(f"{param} must be JSON without NaN and lone surrogates", param=param) from error
    if size > MAX_METADATA_BYTES:
        raise TooLarge(f"{param} has {size} bytes, at most {MAX_METADATA_BYTES} are allowed", param=param)
    return metadata
