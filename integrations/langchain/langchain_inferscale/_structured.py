"""Structured output: what binds the model to a schema, and what reads its answer. No I/O here."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

Schema = dict[str, Any] | type
Method = Literal["json_schema", "function_calling", "json_mode"]


def response_format(schema: Schema | None, method: Method, strict: bool | None) -> dict[str, Any]:
    """OpenAI's `response_format` for one of the two JSON methods. Raises ValueError for a schema without a name."""
    if method == "json_mode":
        return {"type": "json_object"}
    assert schema is not None, "with_structured_output() lets only json_mode go without a schema"
    described = convert_to_json_schema(schema)
    named: dict[str, Any] = {"name": described.get("title") or "answer", "schema": described}
    return {"type": "json_schema", "json_schema": named | ({} if strict is None else {"strict": strict})}


def trace_options(schema: Schema | None, method: Method, strict: bool | None) -> dict[str, Any]:
    """What tracers are told; core takes it out of the call again."""
    named = {"method": method} | ({} if strict is None else {"strict": strict})
    return {"ls_structured_output_format": {"kwargs": named, "schema": schema}} if schema is not None else {}


def tool_name(schema: Schema) -> str:
    """What the one tool of function calling is called."""
    return str(convert_to_openai_tool(schema)["function"]["name"])


def parser(schema: Schema | None, method: Method) -> Runnable[Any, Any]:
    """Reads an answer: an instance of a pydantic class, a dict for every other schema."""
    typed = isinstance(schema, type) and is_basemodel_subclass(schema)
    if method == "function_calling":
        assert schema is not None, "function calling has a schema"
        if typed:
            return PydanticToolsParser(tools=[schema], first_tool_only=True)  # type: ignore[list-item]
        return JsonOutputKeyToolsParser(key_name=tool_name(schema), first_tool_only=True)
    return PydanticOutputParser(pydantic_object=schema) if typed else JsonOutputParser()  # type: ignore[arg-type]


def piped(
    model: Runnable[LanguageModelInput, AIMessage], read: Runnable[Any, Any], include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """Model, then parser; with `include_raw` a dict of raw, parsed and parsing_error instead of an exception."""
    if not include_raw:
        return model | read
    tried = RunnablePassthrough.assign(parsed=itemgetter("raw") | read, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | tried.with_fallbacks([failed], exception_key="parsing_error")
