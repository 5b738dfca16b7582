"""Haystacks after haystacks through a server whose device memory holds less than two of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.bench import encoding
from inferscale_server.bench.accuracy.case import Haystack
from inferscale_server.bench.accuracy.cell import trios
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.bench.accuracy.measure import Measuring, Progress
from inferscale_server.bench.accuracy.served import ServedModel
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.bench.encoding import Encoding
from inferscale_server.errors import Unavailable
from tests.bench.small_server import SmallServer, small_server
from tests.bench.ten_questions import CASES

FACTS = (DatedFact("A fact."), DatedFact("Another fact."))
QUIET = Progress(lambda text: None, lambda count: None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallServer]:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    with small_server(room=3) as running:
        yield running


@pytest.fixture
def model(server: SmallServer) -> Iterator[ServedModel]:
    with InferScaleClient(base_url=server.url) as client:
        served = ServedModel(client, server.url, None, 100, 0, lambda client: {"cpu_cores": 2})
        yield served
        served.close()


def test_each_haystack_has_the_room_that_the_one_before_has_left(
    server: SmallServer, model: ServedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("out"), {})
    haystacks = [Haystack(str(at), FACTS, CASES[2 * at : 2 * at + 2]) for at in range(4)]
    assert Measuring(model, "primer", ledger).run(haystacks, (5, 20), 2, QUIET) == []
    assert len(trios(ledger)) == 16 and len(set(server.deleted)) == 4 and server.encoded == {}
    assert ledger.variants["primer"]["tail_tokens"] == 0 and ledger.variants["primer"]["embedder"] == "letters"
    assert ledger.variants["primer"]["machine"] == {"cpu_cores": 2}


def test_facts_that_got_no_kv_are_an_error_and_leave_nothing_behind(server: SmallServer, model: ServedModel) -> None:
    with pytest.raises(Unavailable, match="only 3 of 4 facts got KV"):
        model.take_in(FACTS * 2, lambda text: None)
    assert len(server.deleted) == 1 and server.encoded == {}


def test_a_server_that_does_not_tell_what_is_encoded_is_believed() -> None:
    taken = Encoding(4, 40, 0.1, 0.1, {"stored": 4}, {})
    assert taken.complaints == [] and Encoding(4, 40, 0.1, 0.1, {}, {}, encoded=4).complaints == []
