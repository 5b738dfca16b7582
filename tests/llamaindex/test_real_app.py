"""The memory through the real routes and the real store, without a model."""

from __future__ import annotations

from pathlib import Path

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.memory.inferscale import InferScaleMemory

from tests.edge.conftest import client_of, guarded, running
from tests.extraction.script import by_default

from .foreign import ForeignLLM
from .loop import async_client, sync_client


async def test_what_one_agent_is_told_another_llm_reads_in_its_notes_and_no_stranger(tmp_path: Path) -> None:
    async with running(tmp_path) as services, client_of(guarded(services)) as app:
        client, over = sync_client(app), async_client(app)
        llm = ForeignLLM("Nice.")

        def memory(user: str, session: str) -> InferScaleMemory:
            return InferScaleMemory.from_client(
                client, user_id=user, async_client=over, session_id=session, mode="text", infer=False
            )

        monday = memory("alice", "monday")
        await FunctionAgent(llm=llm).run(user_msg="My dog is called Bruno.", memory=monday)
        assert await monday.aflush()
        assert (monday.writes.written, monday.writes.failed, monday.writes.failed_facts) == (1, 0, 0)
        tuesday, stranger = memory("alice", "tuesday"), memory("bob", "tuesday")
        for each in (tuesday, stranger):
            await each.aput(ChatMessage("What is my dog called?"))
        notes = ((await tuesday.aget())[0].content or "").splitlines()
        assert any(line.startswith("- [20") and line.endswith("user: My dog is called Bruno.") for line in notes)
        assert [message.content for message in await stranger.aget()] == ["What is my dog called?"]
        (fact, answer) = [fact async for fact in await over.memories.list("alice")]
        assert (fact.speaker, fact.session_id, answer.speaker) == ("user", "monday", "assistant")
        assert tuesday.failed_searches == stranger.failed_searches == 0


async def test_on_a_server_without_settings_the_next_run_knows_what_the_user_said(tmp_path: Path) -> None:
    async with running(tmp_path) as services, client_of(by_default(services)) as app:
        client, over = sync_client(app), async_client(app)
        first = InferScaleMemory.from_client(client, user_id="alice", async_client=over)
        await FunctionAgent(llm=ForeignLLM("Nice.")).run(user_msg="My dog is called Bruno.", memory=first)
        assert await first.aflush()
        following = InferScaleMemory.from_client(client, user_id="alice", async_client=over, mode="text")
        await following.aput(ChatMessage("What is my dog called?"))
        assert "My dog is called Bruno." in ((await following.aget())[0].content or "")
        (fact,) = [fact async for fact in await over.memories.list("alice")]
        assert (fact.text, fact.speaker) == ("My dog is called Bruno.", "user")
