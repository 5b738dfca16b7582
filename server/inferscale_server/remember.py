"""The verb remember: what a client wrote, to drafts, to facts that can be found.

Knows: which requests are acceptable and in which order a write becomes visible. Refuses to know: HTTP, models, KV.
"""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.limits import (
    MAX_FACT_CHARS,
    MAX_FACTS_PER_REQUEST,
    MAX_ID_CHARS,
    MAX_MESSAGES_PER_REQUEST,
    MAX_METADATA_BYTES,
    MAX_SPEAKER_CHARS,
)
from inferscale_server.moments import parse_timestamp as parse_timestamp
from inferscale_server.types import (
    UNSET,
    AddOutcome,
    Fact,
    FactChange,
    FactDraft,
    IdempotencyKey,
    Owner,
    Scope,
    Successor,
    Unset,
)

if TYPE_CHECKING:  # commands check ids with this file, and shall not load numpy for it
    import numpy as np
    import numpy.typing as npt

    from inferscale_server.facts import FactStore
    from inferscale_server.index import VectorIndex
    from inferscale_server.known import KnownFacts

FACT_KEYS = frozenset({"text", "speaker", "timestamp", "session_id", "metadata", "expires_at", "agent_id", "run_id"})
CHANGE_KEYS = frozenset({"text", "speaker", "session_id", "metadata", "timestamp", "expires_at"})
REMEMBERED_ROLES = frozenset({"user", "assistant"})
SKIPPED_ROLES = frozenset({"system", "developer", "tool", "function"})

Answers = Literal["whole", "clipped", "skipped"]

_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_UNSEEN = (
    ("\u034f", "\u034f"),
    ("\u115f", "\u1160"),
    ("\u17b4", "\u17b5"),
    ("\u180b", "\u180f"),
    ("\u2800", "\u2800"),
    ("\u3164", "\u3164"),
    ("\ufe00", "\ufe0f"),
    ("\uffa0", "\uffa0"),
    ("\U000e0100", "\U000e01ef"),
)
"""Ranges of characters of other categories that show nothing: joiners, fillers, variation selectors."""


JOINERS, SELECTORS, KEYCAP = "\u200c\u200d", "\ufe0e\ufe0f", "\u20e3"
"""What joins two letters or emoji into one; what says how a sign is drawn; what makes a key of a digit."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What became of each draft, the facts that can be found since this write, oldest first, and the ids of those
    that cannot be found any more."""

    outcomes: tuple[AddOutcome, ...]
    facts: tuple[Fact, ...]
    gone: tuple[str, ...] = ()


def remember(
    store: FactStore,
    index: VectorIndex,
    known: KnownFacts,
    owner: Owner,
    drafts: Sequence[FactDraft],
    vectors: Sequence[npt.NDArray[np.float32]],
    idempotency: IdempotencyKey | None = None,
    successors: Sequence[Successor] = (),
) -> Remembered:
    """Commit drafts with their vectors (each float32 [pieces, dimension]), then make them readable, then findable, and
    what they supersede neither.

    Runs in the one writer thread. Facts whose time has come must be swept before, or a new one would pass for a
    duplicate of what nobody can see. Raises what FactStore.add raises, with nothing stored.
    """
    import numpy as np

    outcomes = store.add(owner, drafts, vectors, idempotency, successors)
    gone = tuple(outcome.id for outcome in outcomes if outcome.status == "superseded" and outcome.id is not None)
    if gone:
        known.bump_epoch(owner)
        index.remove(owner, gone)
    for fact_id in gone:
        known.drop(owner, fact_id)
    rows: dict[str, int] = {}
    for row, outcome in enumerate(outcomes[: len(drafts)]):
        # Whatever its status: a duplicate can be a fact whose first commit was reported as failed, though it was not.
        if outcome.id is not None and known.get(owner, outcome.id) is None:
            rows.setdefault(outcome.id, row)
    facts = tuple(sorted(store.get_many(owner, rows).values(), key=lambda fact: fact.seq))
    known.add(facts)
    of_facts = [vectors[rows[fact.id]] for fact in facts]
    if facts:
        ids = [fact.id for fact, pieces in zip(facts, of_facts, strict=True) for _ in pieces]
        index.add(owner, ids, np.concatenate(of_facts))
    return Remembered(outcomes, facts, gone)


@dataclass(frozen=True, slots=True)
class DraftDefaults:
    """What a request says once for all of its facts or messages; each may say otherwise for itself."""

    occurred_at: float | None = None
    session_id: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    expires_at: float | None = None
    scope: Scope = field(default_factory=Scope)


@dataclass(frozen=True, slots=True)
class Said:
    """What one message of a user or an assistant would be as a fact; `by_user`: it is the user's own."""

    by_user: bool
    draft: FactDraft


def parse_defaults(
    session_id: object = None,
    timestamp: object = None,
    metadata: object = None,
    expires_at: object = None,
    scope: Scope = Scope(),  # noqa: B008  frozen
) -> DraftDefaults:
    """The request's own fields of these names. Raises InvalidRequest or TooLarge that name the field."""
    return DraftDefaults(
        occurred_at=parse_timestamp(timestamp, "timestamp"),
        session_id=None if session_id is None else parse_id(session_id, "session_id"),
        metadata=parse_metadata(metadata, "metadata"),
        expires_at=parse_expiry(expires_at, "expires_at"),
        scope=scope,
    )


def parse_scope(agent_id: object = None, run_id: object = None, prefix: str = "") -> Scope:
    """Ids that are as strict as a user's. Raises InvalidRequest that names the field behind `prefix`."""
    return Scope(
        None if agent_id is None else parse_id(agent_id, f"{prefix}agent_id"),
        None if run_id is None else parse_id(run_id, f"{prefix}run_id"),
    )


def parse_change(fields: Mapping[str, object]) -> FactChange:
    """What an update asks for: at least one of CHANGE_KEYS; null removes all but a text and metadata.

    Raises InvalidRequest or TooLarge that name the field.
    """
    unknown = sorted(str(key) for key in fields.keys() - CHANGE_KEYS)
    if unknown:
        raise InvalidRequest(f"unknown field {unknown[0]!r}", code="unknown_field", param=unknown[0])
    if not fields:
        raise InvalidRequest(f"nothing to change: give at least one of {', '.join(sorted(CHANGE_KEYS))}")
    return FactChange(
        text=parse_text(fields["text"], "text") if "text" in fields else None,
        metadata=parse_metadata(_required_mapping(fields["metadata"]), "metadata") if "metadata" in fields else None,
        expires_at=parse_expiry(fields["expires_at"], "expires_at") if "expires_at" in fields else UNSET,
        occurred_at=parse_timestamp(fields["timestamp"], "timestamp") if "timestamp" in fields else UNSET,
        speaker=_parse_named(fields, "speaker", _parse_speaker),
        session_id=_parse_named(fields, "session_id", parse_id),
    )


def _parse_named(fields: Mapping[str, object], name: str, parse: Callable[[object, str], str]) -> str | Unset | None:
    if name not in fields:
        return UNSET
    return None if fields[name] is None else parse(fields[name], name)


def drafts_from_facts(facts: object, defaults: DraftDefaults) -> tuple[FactDraft, ...]:
    """One draft for each fact: a string, or an object of FACT_KEYS.

    Raises InvalidRequest or TooLarge that name the field, as in `facts[3].text`.
    """
    listed = _parse_list(facts, "facts", MAX_FACTS_PER_REQUEST)
    return tuple(_draft_from_fact(fact, defaults, f"facts[{i}]") for i, fact in enumerate(listed))


def drafts_from_messages(messages: object, defaults: DraftDefaults) -> tuple[FactDraft, ...]:
    """One draft for each message of a user or an assistant; system and tool messages say nothing to remember.

    Raises InvalidRequest or TooLarge that name the field, as in `messages[3].content`.
    """
    return tuple(said.draft for said in said_in(messages, defaults))


def said_in(messages: object, defaults: DraftDefaults, answers: Answers = "whole") -> tuple[Said, ...]:
    """Like `drafts_from_messages`, with whether the user said it. `answers`: what becomes of the assistant's, however
    long: `clipped` to MAX_FACT_CHARS, or `skipped`."""
    listed = _parse_list(messages, "messages", MAX_MESSAGES_PER_REQUEST)
    said = (_said_in_message(message, defaults, answers, f"messages[{i}]") for i, message in enumerate(listed))
    return tuple(one for one in said if one is not None)


def parse_user_id(value: object, param: str = "user_id") -> str:
    """A user id as the client wrote it, never mended: look-alikes stay different users. Raises InvalidRequest."""
    return parse_id(value, param)


def parse_id(value: object, param: str) -> str:
    """A non-empty NFC string of at most MAX_ID_CHARS, without outer blanks and unseen characters but emoji's joiners.

    Raises InvalidRequest (code `invalid_id`).
    """
    if not isinstance(value, str) or not value:
        raise _bad_id(f"{param} must be a string that is not empty", param)
    if len(value) > MAX_ID_CHARS:
        raise _bad_id(f"{param} has {len(value)} characters, at most {MAX_ID_CHARS} are allowed", param)
    if value != value.strip():
        raise _bad_id(f"{param} must not begin or end with a blank", param)
    if any(_unseen(char) and not _joins(value, at) for at, char in enumerate(value)):
        raise _bad_id(f"{param} must not contain control, zero-width or other invisible characters", param)
    if not unicodedata.is_normalized("NFC", value):
        raise _bad_id(f"{param} must be in Unicode's composed form (NFC)", param)
    return value


def parse_expiry(value: object, param: str) -> float | None:
    """Like `parse_timestamp`, and still to come. Raises InvalidRequest."""
    moment = parse_timestamp(value, param)
    if moment is not None and moment <= time.time():
        raise InvalidRequest(f"{param} has passed already", param=param)
    return moment


def _bad_id(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_id", param=param)


def _unseen(char: str) -> bool:
    """Is `char` invisible? With such characters somebody would make a second user of the same look by accident."""
    return unicodedata.category(char) in _UNSEEN_CATEGORIES or any(low <= char <= high for low, high in _UNSEEN)


def _joins(value: str, at: int) -> bool:
    """Does the unseen character there make one sign of what stands around it? Emoji and some scripts need that."""
    before, behind = value[at - 1 : at], value[at + 1 : at + 2]
    if value[at] in JOINERS:
        return all(
            char > "\x7f" and (char in SELECTORS or not _unseen(char)) for char in (before or " ", behind or " ")
        )
    return value[at] in SELECTORS and (behind == KEYCAP or (before > "\x7f" and not _unseen(before)))


def _draft_from_fact(fact: object, defaults: DraftDefaults, param: str) -> FactDraft:
    if isinstance(fact, str):
        return _draft(fact, None, {}, defaults, param, param)
    if not isinstance(fact, Mapping):
        raise InvalidRequest(f"{param} must be a string or an object", param=param)
    unknown = sorted(str(key) for key in fact.keys() - FACT_KEYS)
    if unknown:
        raise InvalidRequest(f"{param} has an unknown key {unknown[0]!r}", param=f"{param}.{unknown[0]}")
    return _draft(fact.get("text"), fact.get("speaker"), fact, defaults, param, f"{param}.text")


def _said_in_message(message: object, defaults: DraftDefaults, answers: Answers, param: str) -> Said | None:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{param} must be an object", param=param)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in REMEMBERED_ROLES | SKIPPED_ROLES:
        raise InvalidRequest(f"{param}.role {role!r} is not a role of a chat message", param=f"{param}.role")
    by_user = role == "user"
    if role in SKIPPED_ROLES or (content is None and message.get("tool_calls")):
        return None
    if answers == "skipped" and not by_user:
        return None
    name = message.get("name")
    speaker = role if name is None else name
    text_param = f"{param}.content"
    text = _message_text(content, text_param)
    if answers == "clipped" and not by_user and isinstance(text, str):
        text = text.strip()[:MAX_FACT_CHARS]
    return Said(by_user, _draft(text, speaker, message, defaults, param, text_param))


def _draft(
    text: object,
    speaker: object,
    own: Mapping[str, object],
    defaults: DraftDefaults,
    param: str,
    text_param: str,
) -> FactDraft:
    moment = parse_timestamp(own.get("timestamp"), f"{param}.timestamp")
    expires_at = parse_expiry(own.get("expires_at"), f"{param}.expires_at")
    session_id = own.get("session_id")
    metadata = _mapping(own.get("metadata"), f"{param}.metadata")
    scope = parse_scope(own.get("agent_id"), own.get("run_id"), f"{param}.")
    return FactDraft(
        text=parse_text(text, text_param),
        speaker=None if speaker is None else _parse_speaker(speaker, f"{param}.speaker"),
        occurred_at=defaults.occurred_at if moment is None else moment,
        session_id=defaults.session_id if session_id is None else parse_id(session_id, f"{param}.session_id"),
        metadata=parse_metadata({**defaults.metadata, **metadata}, f"{param}.metadata"),
        expires_at=defaults.expires_at if expires_at is None else expires_at,
        agent_id=scope.agent_id or defaults.scope.agent_id,
        run_id=scope.run_id or defaults.scope.run_id,
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


def parse_text(value: object, param: str) -> str:
    """A fact's text without outer blanks. Raises InvalidRequest or TooLarge."""
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


def _required_mapping(value: object) -> object:
    if value is None:
        raise InvalidRequest("metadata must be an object; name a key with null to remove it", param="metadata")
    return value


def parse_metadata(value: object, param: str) -> dict[str, object]:
    """A fact's metadata. Raises InvalidRequest or TooLarge."""
    metadata = dict(_mapping(value, param))
    try:
        size = len(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise InvalidRequest(f"{param} must be JSON without NaN and lone surrogates", param=param) from error
    if size > MAX_METADATA_BYTES:
        raise TooLarge(f"{param} has {size} bytes, at most {MAX_METADATA_BYTES} are allowed", param=param)
    return metadata
