"""LangGraph's store over the memory API: what an agent puts there is a fact, and the model is told it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langgraph.store.base import BaseStore, Op, Result

from inferscale_sdk import InferScaleError
from langchain_inferscale._namespace import Namespace
from langchain_inferscale._server import Clients
from langchain_inferscale._store_steps import Layout, Steps, steps_of
from langchain_inferscale._stored import TEXT_FIELDS


class InferScaleStore(BaseStore):
    """A `BaseStore` whose namespaces are `(*root, user, ...)`, such as `("memories", user_label("ann@example.org"))`.

    A value's text (its first field of `fields`, or those that a put's `index` names) is the fact. Two keys of one user
    cannot say the same (ConflictError), `index=False` is a ValueError, a `ttl` counts from the put alone. Directly
    under the user stand also the facts that others added, with their id as key and `{"text": ...}` as value.
    Namespaces are listed for one user at a time. `options` are the SDK client's: base_url, api_key, timeout, ….
    Raises the SDK's errors.
    """

    supports_ttl = True

    def __init__(
        self,
        *,
        root: Namespace = ("memories",),
        fields: Sequence[str] = TEXT_FIELDS,
        http_client: Any = None,
        http_async_client: Any = None,
        **options: Any,
    ) -> None:
        self._layout = Layout(tuple(root), tuple(fields))
        self._clients = Clients(options, http_client, http_async_client)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in order, each after the one before it."""
        return [self._run(steps_of(op, self._layout)) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in order, each after the one before it."""
        return [await self._arun(steps_of(op, self._layout)) for op in ops]

    def _run(self, steps: Steps) -> Any:
        memories = self._clients.sync.memories
        try:
            ask = next(steps)
            while True:
                try:
                    answer = ask(memories)
                except InferScaleError as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _arun(self, steps: Steps) -> Any:
        memories = self._clients.for_loop().memories
        try:
            ask = next(steps)
            while True:
                try:
                    answer = await ask(memories)
                except InferScaleError as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as end:
            return end.value
