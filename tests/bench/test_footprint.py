"""What memories take, and that the page about it says what the function says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferscale_server.bench.footprint import DTYPE_BYTES, GIB, MODELS, Load, ModelShape, all_sizes, markdown, sizes_of
from inferscale_server.cli import main
from tests.bench.small_server import small_server

ROOT = Path(__file__).parents[2]
TINY = ModelShape("tiny", 2, 3, 4, 1e6)


def test_the_page_shows_the_table_as_computed() -> None:
    assert markdown(all_sizes()) in (ROOT / "docs" / "sizing.md").read_text("utf-8")


def test_a_token_has_a_key_and_a_value_in_every_layer_and_head() -> None:
    assert TINY.token_bytes("float32") == 2 * 2 * 3 * 4 * 4
    assert TINY.token_bytes("bfloat16") == TINY.token_bytes("float32") // 2


def test_the_embedded_models_row_is_what_the_server_reserves() -> None:
    """30 layers, 3 KV heads of 64: read from the model's config.json, and seen as `bytes_per_row` in a status."""
    smol = next(model for model in MODELS if model.name == "SmolLM2-135M")
    assert smol.token_bytes("bfloat16") == 23_040


def test_codes_and_scales_of_a_fact_are_counted_to_the_byte() -> None:
    """Six heads of 4 numbers, keys and values, 5 tokens: codes, 2 bytes of scale each, and 24 channels of 2 bytes."""
    sizes = sizes_of(TINY, "bfloat16", Load(tokens_a_fact=5))
    assert (sizes.fact_bytes, sizes.fact_bytes_int8, sizes.fact_bytes_int4) == (480, 60 * 6 + 48, 60 * 4 + 48)


def test_users_fill_what_weights_and_engine_leave() -> None:
    sizes = sizes_of(TINY, "float32", Load(facts=10, tokens_a_fact=5))
    assert sizes.user_bytes == 10 * sizes.fact_bytes == 50 * sizes.token_bytes
    room = int((24 * 0.9 - 8) * GIB - 4e6)
    assert sizes.users[0] * sizes.user_bytes <= room < (sizes.users[0] + 1) * sizes.user_bytes


def test_a_model_that_does_not_fit_holds_nobody() -> None:
    large = ModelShape("large", 80, 8, 128, 70e9)
    assert sizes_of(large, "bfloat16").users == (0, 0)


def run(*argv: str) -> int:
    """`inferscale bench footprint`; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "footprint", *argv])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_prints_writes_and_draws_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.svg"))
    assert run("--facts", "10", *files) == 0
    read = json.loads((tmp_path / "f.json").read_text())
    rows = read["rows"]
    assert len(rows) == len(MODELS) * len(DTYPE_BYTES) and read["user"] == [] and read["machine"]["cpu_cores"] >= 1
    assert rows[0]["user_bytes"] == 10 * rows[0]["fact_bytes"]
    out = capsys.readouterr().out
    assert all(model.name in out for model in MODELS) and "<svg" in (tmp_path / "f.svg").read_text()
    assert run("--limit", "10") == 0 and capsys.readouterr().out == out


def test_a_real_users_bytes_stand_beside_what_the_tokens_compute_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_server() as server:
        server.add("alice", [{"text": "Bruno is old."}, {"text": "Bruno is a dog."}])
        argv = ("--base-url", server.url, "--user", "alice", "--json", str(tmp_path / "f.json"))
        assert run(*argv) == 0
    told = json.loads((tmp_path / "f.json").read_text())["user"]
    assert {one["tier"]: (one["measured"], one["computed"]) for one in told} == {
        "device": (0, 2000),
        "host": (0, 1000),
        "disk": (1000, 1000),
        "facts": (7, None),
        "index": (8, None),
    }
    assert "2,000" in capsys.readouterr().out


def test_a_server_without_a_user_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--base-url", "http://127.0.0.1:9") == 2
    assert "--user" in capsys.readouterr().err
