"""vLLM options that break the design are refused with the reason; all others pass."""

from __future__ import annotations

from argparse import Namespace

import pytest

from inferscale_server.engine.options import refuse_named, refuse_unsupported
from inferscale_server.errors import UnsupportedOption


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("api_server_count", 2),
        ("data_parallel_size", 2),
        ("decode_context_parallel_size", 2),
        ("prefill_context_parallel_size", 2),
        ("enable_dbo", True),
        ("enable_sleep_mode", True),
        ("enable_elastic_ep", True),
        ("kv_events_config", {"enable_kv_cache_events": True}),
        ("kv_transfer_config", {"kv_connector": "Other"}),
        ("enable_log_requests", True),
        ("enable_log_outputs", True),
        ("enable_scale_out", True),
        ("api_key", ["secret"]),
        ("headless", True),
        ("worker_extension_cls", "a.B"),
        ("kv_offloading_size", 4.0),
        ("grpc", True),
        ("grpc_port", 9000),
        ("uds", "/run/server"),
        ("ssl_keyfile", "key.pem"),
        ("ssl_certfile", "certificate.pem"),
    ],
)
def test_an_option_that_breaks_the_design_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(UnsupportedOption, match="--" + option.replace("_", "-")):
        refuse_unsupported(Namespace(**{option: value}), {})


@pytest.mark.parametrize("name", ["VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_SERVER_DEV_MODE", "VLLM_API_KEY"])
def test_an_environment_variable_that_breaks_it_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedOption, match=name):
        refuse_unsupported(Namespace(), {name: "1"})


def test_defaults_and_harmless_options_pass() -> None:
    usual = Namespace(api_server_count=1, data_parallel_size=1, enable_dbo=False, max_model_len=4096, api_key=None)
    refuse_unsupported(usual, {"VLLM_SERVER_DEV_MODE": "0", "VLLM_LOGGING_LEVEL": "INFO"})


@pytest.mark.parametrize(
    "words", [["--port", "9000"], ["--host=0.0.0.0"], ["--model", "other"], ["--scheduling_policy", "fcfs"]]
)
def test_an_option_that_would_be_overwritten_is_refused(words: list[str]) -> None:
    with pytest.raises(UnsupportedOption, match="is set by InferScale"):
        refuse_named(words, {})


def test_a_way_of_starting_processes_that_outlive_the_server_is_refused() -> None:
    with pytest.raises(UnsupportedOption, match="forkserver"):
        refuse_named([], {"VLLM_WORKER_MULTIPROC_METHOD": "forkserver"})
    refuse_named([], {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
