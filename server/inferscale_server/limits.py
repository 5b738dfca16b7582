"""Every limit, in one place; `docs/limits.md` lists them with their errors."""

from __future__ import annotations

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 500_000  # a body of the largest size could hold millions: seconds of work
MAX_FACTS_PER_REQUEST = 1_000
MAX_MESSAGES_PER_REQUEST = 1_000
MAX_TURNS_PER_REQUEST = 50  # that a model makes facts of: each costs it an answer
MAX_TURNS_QUEUED = 256  # of chats with `remember`, of all users
MAX_TURNS_QUEUED_PER_USER = 16
MAX_FACT_CHARS = 8_000
MAX_QUERY_CHARS = 32_000
MAX_QUERY_CHARS_EMBEDDED = 2_000  # a chat's question is as long as its message, and one embedding holds up all others
MAX_ID_CHARS = 256
MAX_SPEAKER_CHARS = 256
MAX_METADATA_BYTES = 16 * 1024
MAX_K = 1_000
MAX_VECTOR_NUMBERS = 8_192  # in a search by vector; no embedder in use has more dimensions
MAX_PAGE = 1_000
DEFAULT_PAGE = 100
MAX_CONTEXT_TEXTS = 1_000
MAX_FACTS_PER_OWNER = 100_000
MAX_REQUESTS_PER_USER = 64  # in flight at once
MAX_BYTES_PER_OWNER = 256 * 1024 * 1024  # UTF-8 bytes of texts and metadata
MAX_TIER_GIB = 1 << 20  # of the options for device, host and disk: more than any machine has, and still countable
MAX_UPDATES_KEPT = 100  # of each fact's history
MAX_SUPERSEDED_KEPT = 1_000  # facts of each owner that another took the place of
MAX_IDEMPOTENCY_KEYS = 1_000  # of each owner, within a day
MAX_IDEMPOTENCY_KEY_CHARS = 255
MAX_FILTER_DEPTH = 8
MAX_FILTER_CONDITIONS = 64
MAX_FILTER_VALUES = 1_000
MAX_IMPORT_BYTES = 256 * 1024 * 1024
MAX_IMPORT_LINE_BYTES = 256 * 1024  # the longest fact with the largest metadata, all of it escaped
MAX_IMPORT_FAILURES = 1_000
MAX_IMPORT_BLANK_LINES = 10_000
MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 64 * 1024  # of one schema; what an engine makes of it is larger by far
MAX_SCHEMAS_BYTES = 256 * 1024  # of all schemas of one request: with `required`, tools become one schema
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_CHOICES = 1_000  # members of all `enum`s, or of `choice`
MAX_SCHEMA_REPEATS = 1_000  # `minItems` and the like
MAX_SCHEMA_REPEATS_IN_ALL = 5_000
MAX_SCHEMA_PROPERTIES = 256  # of one object; the engine's work grows faster than their square
MAX_PATTERN_CHARS = 4_096
MAX_PATTERN_PARTS = 10_000  # once its repetitions are written out
