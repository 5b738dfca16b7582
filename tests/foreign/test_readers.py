"""Each reader takes what its system writes, and says of the rest where it stood and what is wrong with it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from inferscale_server.foreign import json_lines, letta, mem0, zep
from inferscale_server.foreign.record import Fault, LeftOut, Record, Unreadable

ONE = "0b6e3f3e-3bfa-4bb5-a35e-ee5dd6d3ed1e"
TWO = "1b6e3f3e-3bfa-4bb5-a35e-ee5dd6d3ed1e"
MADE = "2024-05-01T10:00:00+00:00"


def written(folder: Path, value: object, name: str = "export.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def records(reading: Any) -> list[tuple[int, str | None, dict[str, Any]]]:
    found = list(reading)
    assert all(isinstance(one, Record) for one in found), found
    return [(one.number, one.user, dict(one.fields)) for one in found]


MEMORY = {
    "id": ONE,
    "memory": "Rex is a dog",
    "hash": "x",
    "user_id": "alice",
    "agent_id": "a1",
    "actor_id": "Ann",
    "created_at": MADE,
    "updated_at": MADE,
    "metadata": {"topic": "pets", "none": None},
    "expiration_date": "2100-01-01",
}
FACT = {
    "id": ONE.replace("-", ""),
    "text": "Rex is a dog",
    "speaker": "Ann",
    "agent_id": "a1",
    "created_at": MADE,
    "updated_at": MADE,
    "expires_at": "2100-01-01T23:59:59Z",
    "metadata": {"topic": "pets"},
}


@pytest.mark.parametrize("shape", [[MEMORY], {"results": [MEMORY]}, {"memories": [MEMORY]}, json.dumps(MEMORY) + "\n"])
def test_what_mem0s_get_all_returned_is_read(tmp_path: Path, shape: object) -> None:
    if isinstance(shape, str):
        shape += json.dumps({**MEMORY, "id": TWO})
    assert records(mem0.read(written(tmp_path, shape)))[0] == (1, "alice", FACT)


def test_a_qdrant_folder_is_read_without_its_entities(tmp_path: Path) -> None:
    payload = {"data": "Rex is a dog", "user_id": "alice", "text_lemmatized": "x", "topic": "pets", "role": "user"}
    client = QdrantClient(path=str(tmp_path))
    for name in ("mem0", "mem0_entities", "mem0migrations"):
        client.create_collection(name, models.VectorParams(size=2, distance=models.Distance.COSINE))
        points = [models.PointStruct(id=number, vector=[1.0, 0.0], payload=payload) for number in range(300)]
        client.upsert(name, [*points, models.PointStruct(id=ONE, vector=[1.0, 0.0], payload=payload)])
    client.close()
    found = records(mem0.read(tmp_path))
    assert len(found) == 301
    fields = {"text": "Rex is a dog", "speaker": "user", "metadata": {"topic": "pets"}}
    assert found[0] == (1, "alice", fields)
    assert (301, "alice", {**fields, "id": ONE.replace("-", "")}) in found


def test_a_history_gives_the_last_text_of_what_was_not_deleted(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "history.db")
    database.execute(
        "CREATE TABLE history (id TEXT, memory_id TEXT, old_memory TEXT, new_memory TEXT, event TEXT, "
        "created_at TEXT, updated_at TEXT, is_deleted INTEGER, actor_id TEXT, role TEXT)"
    )
    rows = [(ONE, "a dog", "ADD", 0), (TWO, "a car", "ADD", 0), (ONE, "a wolf", "UPDATE", 0), (TWO, None, "DELETE", 1)]
    for memory_id, text, event, is_deleted in rows:
        row = ("x", memory_id, None, text, event, MADE, None, is_deleted, None, None)
        database.execute(f"INSERT INTO history VALUES ({', '.join('?' * 10)})", row)
    database.commit()
    database.close()
    assert list(mem0.read(tmp_path / "history.db")) == [
        Record(3, None, {"text": "a wolf", "id": ONE.replace("-", ""), "created_at": MADE}),
        LeftOut(4, "deleted in mem0"),
    ]


def test_what_has_expired_in_mem0_is_left_out(tmp_path: Path) -> None:
    expired = {**MEMORY, "expiration_date": "2001-01-01"}
    assert list(mem0.read(written(tmp_path, [expired]))) == [LeftOut(1, "expired in mem0")]


def test_zeps_facts_are_read_and_what_is_no_longer_true_is_left_out(tmp_path: Path) -> None:
    edge = {"uuid": ONE, "fact": "Ann manages Bob", "name": "MANAGES", "created_at": MADE, "valid_at": "2023-01-01"}
    past = {**edge, "invalid_at": "2024-01-01T00:00:00Z"}
    assert list(zep.read(written(tmp_path, {"nodes": [], "edges": [edge, past]}))) == [
        Record(
            1,
            None,
            {
                "text": "Ann manages Bob",
                "id": ONE.replace("-", ""),
                "timestamp": "2023-01-01",
                "created_at": MADE,
                "metadata": {"relation": "MANAGES"},
            },
        ),
        LeftOut(2, "no longer true in Zep"),
    ]
    assert records(zep.read(written(tmp_path, {"facts": [{"fact": "x"}]}))) == [(1, None, {"text": "x"})]


def test_an_edge_of_graphiti_belongs_to_its_group_and_one_of_zep_to_its_user(tmp_path: Path) -> None:
    edges = [{"fact": "a", "group_id": "alice"}, {"fact": "b", "group_id": "g", "user_id": "bob"}, {"fact": "c"}]
    found = records(zep.read(written(tmp_path, [*edges, {"fact": "d", "group_id": ""}])))
    assert [user for _, user, _ in found] == ["alice", "bob", None, None]


def test_what_will_stop_being_true_is_true_until_then(tmp_path: Path) -> None:
    edges = [
        {"fact": "Ann leads", "invalid_at": "2100-01-01T00:00:00Z", "expired_at": None},
        {"fact": "Bob led", "invalid_at": "2100-01-01 00:00:00", "expired_at": "2024-01-01 00:00:00+00:00"},
        {"fact": "Cid leads", "invalid_at": "soon"},
    ]
    coming, past, unclear = zep.read(written(tmp_path, edges))
    assert coming == Record(1, None, {"text": "Ann leads", "expires_at": "2100-01-01T00:00:00+00:00"})
    assert past == LeftOut(2, "no longer true in Zep")
    assert isinstance(unclear, Fault) and "invalid_at" in unclear.reason and "soon" in unclear.reason


@pytest.mark.parametrize("key", ["agent_id", "run_id"])
def test_what_belongs_to_an_agent_or_a_run_alone_is_no_users(tmp_path: Path, key: str) -> None:
    alone, beside = {"memory": "Answer in French", key: "x"}, {"memory": "Rex is a dog", key: "x", "user_id": "alice"}
    assert list(mem0.read(written(tmp_path, [alone, beside]))) == [
        LeftOut(1, "of an agent or a run alone"),
        Record(2, "alice", {"text": "Rex is a dog", key: "x"}),
    ]


@pytest.mark.parametrize("key", ["blocks", "core_memory"])
def test_both_forms_of_an_agent_file_are_read(tmp_path: Path, key: str) -> None:
    blocks = [
        {"label": "persona", "value": "I am kind."},
        {"label": "human", "value": "- Likes tea\n\nLives in Oslo\n"},
    ]
    passages = [{"id": f"passage-{ONE}", "text": "Rex is a dog", "created_at": MADE, "tags": ["pets"]}]
    file = written(tmp_path, {"agents": [], key: blocks, "passages": passages, "messages": [{"content": "hi"}]}, "a.af")
    assert list(letta.read(file)) == [
        LeftOut(1, "of the agent's persona"),
        Record(2, None, {"text": "Likes tea", "metadata": {"block": "human"}}),
        Record(2, None, {"text": "Lives in Oslo", "metadata": {"block": "human"}}),
        Record(
            3,
            None,
            {"text": "Rex is a dog", "id": ONE.replace("-", ""), "created_at": MADE, "metadata": {"tags": ["pets"]}},
        ),
    ]
    assert len(records(letta.read(written(tmp_path, passages)))) == 1


def test_plain_lines_are_texts_or_objects(tmp_path: Path) -> None:
    lines = ['"Likes tea"', "", '{"fact": "Rex", "user_id": 7, "topic": "pets", "timestamp": 5, "id": "x"}']
    assert records(json_lines.read(written(tmp_path, "\ufeff" + "\r\n".join(lines)))) == [
        (1, None, {"text": "Likes tea"}),
        (3, "7", {"text": "Rex", "timestamp": 5, "metadata": {"topic": "pets"}}),
    ]


def test_a_bad_line_is_told_by_its_number_and_the_others_are_read(tmp_path: Path) -> None:
    lines = ['"a"', "{", "7", "{}", '{"text": " "}', '{"text": "x", "metadata": 1}', '"b"', "[" * 100_000]
    read = list(json_lines.read(written(tmp_path, "\n".join(lines))))
    assert [one.number for one in read if isinstance(one, Record)] == [1, 7]
    faults = {one.number: one.reason for one in read if isinstance(one, Fault)}
    assert sorted(faults) == [2, 3, 4, 5, 6, 8]
    assert faults[2].startswith("not JSON") and "no text" in faults[4] and "metadata" in faults[6]


@pytest.mark.parametrize(
    ("reader", "value", "reason"),
    [
        (mem0, [7], "not an object"),
        (mem0, [{"id": ONE}], "no text"),
        (zep, [{"name": "x"}], "no text"),
        (zep, ["x"], "not an object"),
        (letta, {"blocks": [{"label": "human"}]}, "without a text"),
        (letta, [{"id": "x"}], "no text"),
        (letta, [None], "not an object"),
    ],
)
def test_a_record_without_a_text_is_told_by_its_position(
    tmp_path: Path, reader: Any, value: object, reason: str
) -> None:
    [fault] = list(reader.read(written(tmp_path, value)))
    assert isinstance(fault, Fault) and fault.number == 1 and reason in fault.reason


@pytest.mark.parametrize("reader", [mem0, zep, letta])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"results": [\n{"memory": "x",}\n]}', "line 2: not JSON"),
        ('{"fact": "x"}\n{"fact": \n', "line 2: not JSON"),
        ("{}", "list"),
        ("7", "list"),
        ("", "not JSON"),
    ],
)
def test_a_file_that_is_no_export_is_refused_as_a_whole(tmp_path: Path, reader: Any, content: str, told: str) -> None:
    with pytest.raises(Unreadable, match=told) as refused:
        list(reader.read(written(tmp_path, content)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("reader", [mem0, zep, letta, json_lines])
def test_a_file_that_is_missing_or_binary_is_refused(tmp_path: Path, reader: Any) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        list(reader.read(tmp_path / "nothing"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Unreadable, match="not UTF-8"):
        list(reader.read(tmp_path / "binary"))


def test_a_folder_or_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no Qdrant folder"):
        list(mem0.read(tmp_path))
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(Unreadable, match="not mem0's history"):
        list(mem0.read(tmp_path / "other.db"))


def test_a_qdrant_folder_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    open_elsewhere = QdrantClient(path=str(tmp_path))
    with pytest.raises(Unreadable, match="already accessed"):
        list(mem0.read(tmp_path))
    open_elsewhere.close()
