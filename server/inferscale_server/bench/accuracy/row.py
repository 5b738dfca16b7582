"""One measurement: one question, one mode, one number of facts. What a run leaves on the disk, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from inferscale_server.bench.accuracy.distribution import Distribution


@dataclass(frozen=True, slots=True)
class RowKey:
    """What is measured only once. `of` is the variant of a kv row, else the prompt's digest."""

    case: str
    mode: str
    k: int
    of: str


@dataclass(frozen=True, slots=True)
class Row:
    """`nll` in nats a token, one for each lead-in; `kl` and `agreement` against text, kv rows only.

    `distributions` are a text row's, to compare later variants with. `k` is 0 without memory. `answer`, its F1 and
    whether a judge found it `right` only where answers were generated; `right` is None until a judge has said it.
    `frame_digest` names the prompt without facts: the off row that the others are compared with.
    """

    case: str
    category: str
    mode: str
    variant: str
    k: int
    digest: str
    facts: int
    memory_tokens: int
    memory_as_text: int
    injected_tokens: int
    nll: tuple[float, ...]
    kl: float | None = None
    agreement: float | None = None
    answer: str | None = None
    f1: float | None = None
    right: bool | None = None
    distributions: tuple[tuple[Distribution, ...], ...] = ()
    frame_digest: str = ""

    @property
    def key(self) -> RowKey:
        """What names it."""
        return RowKey(self.case, self.mode, self.k, self.variant if self.mode == "kv" else self.digest)

    @property
    def off_key(self) -> RowKey:
        """The same question without memory."""
        return RowKey(self.case, "off", 0, self.frame_digest)

    @property
    def text_key(self) -> RowKey:
        """Text over the very same prompt."""
        return RowKey(self.case, "text", self.k, self.digest)

    @property
    def mean_nll(self) -> float:
        """Over the lead-ins."""
        return sum(self.nll) / len(self.nll)

    def to_json(self) -> dict[str, Any]:
        """Plain values; distributions as pairs of lists."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "distributions"}
        pairs = [[[d.token_ids, d.logprobs] for d in ending] for ending in self.distributions]
        return plain | ({"distributions": pairs} if pairs else {})

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Row:
        """The inverse. Raises TypeError, ValueError or KeyError for what is no row."""
        pairs = read.get("distributions", ())
        distributions = tuple(tuple(Distribution(tuple(t), tuple(p)) for t, p in ending) for ending in pairs)
        return cls(**{**read, "nll": tuple(read["nll"]), "distributions": distributions})

    def figures(self) -> dict[str, Any]:
        """All but the distributions, for a report."""
        return {name: value for name, value in asdict(self).items() if name != "distributions"}
