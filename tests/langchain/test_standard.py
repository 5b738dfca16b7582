"""LangChain's own suites, against a scripted engine: not one test is left out or expected to fail."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from langchain_inferscale import InferScaleChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from .scripted_engine import MODEL, ScriptedEngine

# An import statement would find the function of that name.
load = import_module("langchain_core.load.load")


class TestUnit(ChatModelUnitTests):
    @pytest.fixture(autouse=True)
    def listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The suite loads with `allowed_objects="all"`, which means core's own closed list, so our class goes on it."""
        path = ("langchain_inferscale", "InferScaleChatModel")
        monkeypatch.setitem(load.ALL_SERIALIZABLE_MAPPINGS, path, path)
        monkeypatch.setattr(load, "_default_class_paths_cache", {})

    @property
    def chat_model_class(self) -> type[InferScaleChatModel]:
        return InferScaleChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "user_id": "alice", "base_url": "http://inferscale.test"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        named = {"api_key": "from-env", "base_url": "http://env.test"}
        return {"INFERSCALE_API_KEY": "from-env", "INFERSCALE_BASE_URL": "http://env.test"}, {"user_id": "a"}, named


class TestScripted(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[InferScaleChatModel]:
        return InferScaleChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"user_id": "alice", **ScriptedEngine().params}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "another-model"

    @property
    def supported_usage_metadata_details(self) -> Any:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> Any:
        model = InferScaleChatModel(**self.chat_model_params, streaming=stream)
        return model.invoke("What do you remember?")


class TestScriptedFunctionCalling(ChatModelIntegrationTests):
    """The other way to structured output; everything else once more."""

    @property
    def chat_model_class(self) -> type[InferScaleChatModel]:
        return InferScaleChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"user_id": "alice", **ScriptedEngine().params}

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "function_calling"}
