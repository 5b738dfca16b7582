"""`docs/http.md` shows every route, and what it shows runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args, get_type_hints
from urllib.parse import quote, urlsplit

import httpx

from inferscale_server.edge.allowlist import ADMIN_ROUTES, ALLOWED, MEMORY_ROUTES, VLLM_ROUTES
from inferscale_server.filters import TIMES, WORDS
from inferscale_server.upkeep import Reindexing

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
FIELD_OPTIONS = ("-d", "--data", "--data-urlencode", "--data-binary")


@dataclass
class Curl:
    """One curl command, read the way curl reads it (the options that the page uses)."""

    url: str = ""
    method: str | None = None
    as_query: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    fields: list[tuple[str, str]] = field(default_factory=list)
    output: str | None = None

    @classmethod
    def read(cls, command: str, variables: Mapping[str, str]) -> Curl:
        for name, value in variables.items():
            command = command.replace(f"${name}", value)
        curl, (program, *words) = cls(), shlex.split(command)
        assert program == "curl"
        while words:
            word = words.pop(0)
            if word == "-G":
                curl.as_query = True
            elif word == "-H":
                name, _, value = words.pop(0).partition(": ")
                curl.headers[name] = value
            elif word in FIELD_OPTIONS:
                curl.fields.append((word, words.pop(0)))
            elif word == "-X":
                curl.method = words.pop(0)
            elif word == "-o":
                curl.output = words.pop(0)
            else:
                assert not curl.url and not word.startswith("-"), word
                curl.url = word
        return curl

    @property
    def verb(self) -> str:
        return self.method or ("POST" if self.fields and not self.as_query else "GET")

    def request(self, files: Mapping[str, bytes]) -> httpx.Request:
        if self.as_query:
            return httpx.Request(self.verb, f"{self.url}?{'&'.join(self._encoded())}", headers=self.headers)
        content = b"".join(self._bytes(value, files) for _, value in self.fields)
        return httpx.Request(self.verb, self.url, headers=self.headers, content=content)

    def _encoded(self) -> list[str]:
        pairs = [(option, *text.partition("=")) for option, text in self.fields]
        return [f"{name}={quote(value) if option == '--data-urlencode' else value}" for option, name, _, value in pairs]

    @staticmethod
    def _bytes(value: str, files: Mapping[str, bytes]) -> bytes:
        return files[value[1:]] if value.startswith("@") else value.encode()


def commands() -> list[str]:
    return re.findall(r"```sh\n(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_page_shows_every_route_with_every_method_and_no_other() -> None:
    shown = set()
    for command in commands():
        curl = Curl.read(command, {"URL": "http://testserver", "ID": "0" * 32})
        shown.add((curl.verb, ALLOWED.match(curl.verb, urlsplit(curl.url).path).template))
    tables = (VLLM_ROUTES, MEMORY_ROUTES, ADMIN_ROUTES)
    assert shown == {(method, path) for table in tables for path, needs in table.items() for method in needs}


async def test_what_the_page_shows_of_memories_runs_from_top_to_bottom(client: httpx.AsyncClient) -> None:
    variables, ran = {"URL": "http://testserver"}, 0
    files: dict[str, bytes] = {}
    for command in commands():
        curl = Curl.read(command, variables)
        if ALLOWED.match(curl.verb, urlsplit(curl.url).path).template not in MEMORY_ROUTES:
            continue
        response = await client.send(curl.request(files))
        assert response.status_code == 200, (command, response.text)
        ran += 1
        if curl.output:
            files[curl.output] = response.content
        elif "results" in (answer := json.loads(response.content)):
            assert [result["status"] for result in answer["results"]] == ["stored", "stored"]
            variables["ID"] = answer["results"][-1]["id"]
        elif "imported" in answer:
            assert answer == {"imported": 0, "duplicates": 2, "failed": []}
        elif "filter" in command:
            assert len(answer["data"]) == 1
    assert ran == 16


def test_the_page_names_every_key_that_is_not_metadatas_and_every_state_of_a_reindexing() -> None:
    pages = Path(__file__).parents[2] / "docs"
    filters = (pages / "http.md").read_text().split("### Filters")[1].split("## Change")[0]
    assert {key for key in WORDS | TIMES if f"`{key}`" not in filters} == set()
    operations = (pages / "operations.md").read_text()
    states = {"none", *get_args(get_type_hints(Reindexing)["state"])}
    (line,) = [line for line in operations.splitlines() if line.startswith("| `GET /v1/inferscale/admin/reindex`")]
    assert {state for state in states if f"`{state}`" not in line} == set()
