"""Results of the chat route: OpenAI's shape, plus what InferScale remembered for it."""

from __future__ import annotations

from pydantic import Field, field_validator

from inferscale_sdk._wire import Wire


class InjectedFact(Wire):
    """A fact the model was given. `text` is None where the key may not read texts; context texts have no score."""

    id: str | None = None
    text: str | None = None
    score: float | None = None


class MemoryUse(Wire):
    """How memory served one answer. `mode` is kv, text or off; `reason` says why. Counts are tokens.

    `footprint` is bytes of the user's KV per tier when the answer ended: device, host, disk.
    """

    mode: str | None = None
    reason: str | None = None
    facts: tuple[InjectedFact, ...] = ()
    injected_tokens: int = 0
    prefilled_tokens: int = 0
    kv_source: dict[str, int] = Field(default_factory=dict)
    footprint: dict[str, int] = Field(default_factory=dict)
    timings_ms: dict[str, float] = Field(default_factory=dict)
    remember: str | None = None
    """Of a chat that asked for it: queued, queue_full, nothing (to remember) or unusable."""

    @field_validator("kv_source", "footprint", "timings_ms", mode="before")
    @classmethod
    def _measured_only(cls, value: object) -> object:
        # A stage that did not run has no number.
        return {key: number for key, number in value.items() if number is not None} if isinstance(value, dict) else {}


class FunctionCall(Wire):
    """Name and JSON arguments of a function the model wants called."""

    name: str = ""
    arguments: str = ""


class ToolCall(Wire):
    """One call of a tool."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall = Field(default_factory=FunctionCall)


class Message(Wire):
    """What the model said."""

    role: str = "assistant"
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class Choice(Wire):
    """One of the `n` answers."""

    index: int = 0
    message: Message
    finish_reason: str | None = None
    logprobs: dict[str, object] | None = None


class Usage(Wire):
    """Tokens of one request; `prompt_tokens_details` is kept in `model_extra` where the server sends it."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    total_tokens: int = 0


class ChatResponse(Wire):
    """An answer. The properties speak of the first choice; all of them are in `choices`."""

    id: str | None = None
    model: str | None = None
    created: int | None = None
    choices: tuple[Choice, ...]
    usage: Usage | None = None
    inferscale: MemoryUse = Field(default_factory=MemoryUse)

    @field_validator("inferscale", mode="before")
    @classmethod
    def _absent_is_empty(cls, value: object) -> object:
        return {} if value is None else value

    @property
    def text(self) -> str:
        """What the model said, "" if it only called tools."""
        return (self.choices[0].message.content or "") if self.choices else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools the model wants called."""
        return (self.choices[0].message.tool_calls or ()) if self.choices else ()

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: stop, length, tool_calls, …"""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def facts(self) -> tuple[InjectedFact, ...]:
        """The facts the model was given, as the server lists them."""
        return self.inferscale.facts

    @property
    def mode(self) -> str | None:
        """kv, text or off; None from a server that is not InferScale."""
        return self.inferscale.mode

    @property
    def reason(self) -> str | None:
        """Why this mode."""
        return self.inferscale.reason

    @property
    def injected_tokens(self) -> int:
        """Tokens of memory that came as KV."""
        return self.inferscale.injected_tokens

    @property
    def prefilled_tokens(self) -> int:
        """Tokens that the model had to compute before the answer."""
        return self.inferscale.prefilled_tokens

    @property
    def kv_source(self) -> dict[str, int]:
        """Tokens of memory per source: device, host, disk, text."""
        return self.inferscale.kv_source

    @property
    def footprint(self) -> dict[str, int]:
        """Bytes of the user's KV per tier: device, host, disk, as `client.footprint` has them among its `bytes`.

        Empty from a server that does not tell.
        """
        return self.inferscale.footprint

    @property
    def timings_ms(self) -> dict[str, float]:
        """Milliseconds per stage: embed, search, plan, stage, ttft."""
        return self.inferscale.timings_ms


class Delta(Wire):
    """What one chunk adds to a choice."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(Wire):
    """One choice's part of a chunk."""

    index: int = 0
    delta: Delta = Field(default_factory=Delta)
    finish_reason: str | None = None


class ChatChunk(Wire):
    """One event of a stream. Usage and `inferscale` come with the last ones, which may have no choices."""

    id: str | None = None
    model: str | None = None
    choices: tuple[ChunkChoice, ...] = ()
    usage: Usage | None = None
    inferscale: MemoryUse | None = None

    @property
    def text(self) -> str:
        """What this chunk adds to the first choice."""
        return "".join(choice.delta.content or "" for choice in self.choices if choice.index == 0)
