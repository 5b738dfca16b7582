"""KV files with a real engine: what left the slab comes back, bit by bit, without encoding."""

from __future__ import annotations

from inferscale_server.types import LOCAL_TENANT, Owner

from .live import LiveServer, assert_same

QUESTION = "What is the dog called?"


async def test_r8_kv_that_was_evicted_comes_back_without_encoding_and_answers_the_same(server: LiveServer) -> None:
    await server.remember("loaded", "Ann's dog is called Biscuit.", "Ann lives in Lyon.", "Ann plays the cello.")
    first = await server.chat_encoded("loaded", QUESTION)
    for chunk in server.catalog.of(Owner(LOCAL_TENANT, "loaded")):
        server.catalog.drop(chunk.key)
    before = dict(server.brain.encoder.results)
    again = await server.chat_encoded("loaded", QUESTION)
    after = server.brain.encoder.results
    assert first.told["mode"] == again.told["mode"] == "kv"
    assert after["stored"] == before["stored"]  # so it came from host memory or the disk, by staging or the encoder
    assert_same(first, again)


async def test_a_deleted_users_files_are_gone_when_the_delete_is_answered(server: LiveServer) -> None:
    owner = Owner(LOCAL_TENANT, "unlinked")
    await server.remember("unlinked", "Bob's code is 4417.", "Bob lives in Graz.")
    disk = server.brain.disk
    stems = [stored.stem for stored in disk.shelf.of(owner.digest())]
    assert stems and all(path.exists() for stem in stems for path in disk._paths(stem))
    deleted = await server.client.delete("/v1/memories", params={"user_id": "unlinked"})
    assert deleted.status_code == 200, deleted.text
    assert not any(path.exists() for stem in stems for path in disk._paths(stem))
