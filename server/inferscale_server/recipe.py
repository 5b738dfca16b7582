"""Encoding recipes: what text a fact is encoded behind. The one place to change how facts come to see each other.

Behind the header stand the facts of the owner's primer, one set for all of the owner's facts, and then the fact's own
window, which depends on the fact. A recipe has either, both, or none of them. It only chooses; encode.py carries it
out. Measurements: docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inferscale_server.medoids import medoids
from inferscale_server.recipe_name import check_recipe
from inferscale_server.roster import Roster
from inferscale_server.types import Fact
from inferscale_server.vectors import NO_VECTORS, FactVectors

PrimerChoice = Literal["medoids", "oldest"]
MAX_SESSION_FACTS = 200
"""A longer session's facts are encoded behind its first so many: one that slid would be computed anew for each fact."""


@dataclass(frozen=True, slots=True)
class Primer:
    """The facts behind which all of an owner's facts are encoded; `chosen_of` is how many there were at the choice."""

    fact_ids: tuple[str, ...] = ()
    chosen_of: int = 0

    def before(self, fact_id: str) -> tuple[str, ...]:
        """All of it, or for one of its own facts those that stand before it.

        A fact that saw its own copy would be encoded as a repetition, whose content lies in a copy that no prompt
        holds. Leaving out only the copy costs a request of its own for each of them and answered no better.
        """
        return self.fact_ids[: self.fact_ids.index(fact_id)] if fact_id in self.fact_ids else self.fact_ids

    def extends(self, other: Primer) -> bool:
        """Is everything that was encoded behind the other's facts also encoded as this one says?"""
        return self.fact_ids[: len(other.fact_ids)] == other.fact_ids


class Window(Protocol):
    """Chooses the part of the prefix that depends on the fact. Deterministic, pure."""

    @property
    def name(self) -> str:
        """Part of the fingerprint."""

    def before(self, roster: Roster, fact: Fact, vectors: FactVectors) -> Sequence[str]:
        """Ids of the facts that this one is encoded behind, in their order in the prompt."""


@dataclass(frozen=True, slots=True)
class Session:
    """The session's earlier facts: each is the prefix of the next, so that a whole session costs its own tokens."""

    name: str = "session"

    def before(self, roster: Roster, fact: Fact, vectors: FactVectors) -> Sequence[str]:
        """The session's oldest facts, as far as they are older than this one."""
        oldest, place = roster.session(fact, MAX_SESSION_FACTS), roster.place(fact.id)
        return [fact_id for fact_id in oldest if roster.place(fact_id) < place]


@dataclass(frozen=True, slots=True)
class Preceding:
    """The owner's facts just before this one, whatever their session (the paper's context window)."""

    turns: int

    @property
    def name(self) -> str:
        """Names the length, which changes what is computed."""
        return f"window-{self.turns}"

    def before(self, roster: Roster, fact: Fact, vectors: FactVectors) -> Sequence[str]:
        """At most `turns` facts, oldest first."""
        return roster.before(fact.id, self.turns)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The facts nearest to this one by embedding when it is encoded; those that come later do not change it."""

    facts: int

    @property
    def name(self) -> str:
        """Names the number, which changes what is computed."""
        return f"neighbours-{self.facts}"

    def before(self, roster: Roster, fact: Fact, vectors: FactVectors) -> Sequence[str]:
        """At most `facts` facts, the nearest last."""
        return [near for near in reversed(vectors.nearest(fact.id, self.facts)) if near in roster]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an owner's facts are encoded behind: nothing at all, or the header, `primer_facts` facts, and windows."""

    header: bool = True
    primer_facts: int = 0
    choice: PrimerChoice = "medoids"
    windows: tuple[Window, ...] = ()

    @property
    def name(self) -> str:
        """Part of the fingerprint: chunks of another recipe are not served."""
        primer = [f"primer-{self.primer_facts}-{self.choice}"] if self.primer_facts else []
        return "+".join([*primer, *(window.name for window in self.windows)]) or (
            "header" if self.header else "isolated"
        )

    @property
    def needs_vectors(self) -> bool:
        """Does `behind` look at the facts' vectors?"""
        return any(isinstance(window, Neighbours) for window in self.windows)

    @property
    def nearest_last(self) -> bool:
        """Do the windows name the facts that matter most last, so that the first ones go where room is short?

        A session's do not: each is the prefix of the next.
        """
        return bool(self.windows) and not any(isinstance(window, Session) for window in self.windows)

    def look_up(self, fact_ids: Sequence[str], vectors: FactVectors) -> None:
        """What `behind` will ask the vectors for these facts; for a thread."""
        for window in self.windows:
            if isinstance(window, Neighbours):
                vectors.look_up(fact_ids, window.facts)

    def due(self, facts: int, current: Primer) -> bool:
        """Is a new choice to be made among so many facts: for the first time, or because the owner has doubled?

        Each doubling encodes everything again, so a life of facts added one by one costs a bit more than two encodings
        a fact.
        """
        if facts <= self.primer_facts or not self.primer_facts:
            return False
        return len(current.fact_ids) < self.primer_facts or facts >= 2 * current.chosen_of

    def primer(self, roster: Roster, current: Primer, vectors: Callable[[], FactVectors]) -> Primer:
        """The primer to use now; the current one as long as no choice is due. `vectors` is called only for a choice.

        Oldest first: no fact that is there has to be encoded again when the primer fills, and its own facts see what
        came before them, as in a conversation.
        """
        if not self.primer_facts:
            return current
        if len(roster) <= self.primer_facts:
            return Primer(tuple(roster.ids), len(roster))
        if not self.due(len(roster), current):
            return current
        ids = tuple(roster.ids)
        return Primer(self._chosen(ids, vectors), len(ids))

    def _chosen(self, ids: tuple[str, ...], vectors: Callable[[], FactVectors]) -> tuple[str, ...]:
        oldest = ids[: self.primer_facts]
        if self.choice == "oldest":
            return oldest
        place = {fact_id: number for number, fact_id in enumerate(ids)}
        known = vectors().of(place.__contains__)
        chosen = {known.ids[row] for row in medoids(known.matrix, self.primer_facts)}
        return tuple(sorted(chosen, key=place.__getitem__)) if len(chosen) == len(oldest) else oldest

    def behind(self, roster: Roster, fact: Fact, primer: Primer, vectors: FactVectors = NO_VECTORS) -> tuple[str, ...]:
        """Ids of the facts that this one is encoded behind, in order, none twice and never itself."""
        own = (fact_id for window in self.windows for fact_id in window.before(roster, fact, vectors))
        chosen = dict.fromkeys((*primer.before(fact.id), *own))
        chosen.pop(fact.id, None)
        return tuple(chosen)


@dataclass(frozen=True, slots=True)
class RecipeSizes:
    """How many facts each part of a recipe holds, and how the primer's are chosen."""

    primer_facts: int = 20
    window_turns: int = 20
    neighbours: int = 5
    choice: PrimerChoice = "medoids"


def make_recipe(name: str, sizes: RecipeSizes) -> Recipe:
    """The recipe that the configuration names. Raises ValueError like `check_recipe`."""
    parts = check_recipe(name).split("+")
    windows: dict[str, Window] = {
        "session": Session(),
        "window": Preceding(sizes.window_turns),
        "neighbours": Neighbours(sizes.neighbours),
    }
    return Recipe(
        header=name != "isolated",
        primer_facts=sizes.primer_facts if "primer" in parts else 0,
        choice=sizes.choice,
        windows=tuple(windows[part] for part in parts if part in windows),
    )
