"""Builds the brain from a running engine: what the model is, what it can do, and the stores and verbs around it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from starlette.datastructures import State

from inferscale_server.batch import Listeners
from inferscale_server.brain import Brain
from inferscale_server.catalog import Catalog
from inferscale_server.config import ServerConfig
from inferscale_server.data_folder import DataFolder, server_url
from inferscale_server.edge.metrics import Metrics
from inferscale_server.embed import load_embedder
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.engine.door import EngineDoor
from inferscale_server.engine.framing import Framer
from inferscale_server.engine.support import codecs_of, support_of
from inferscale_server.engine.writer import ServedWriter
from inferscale_server.extraction.build import backlog_of, build_extraction
from inferscale_server.facts import FactStore
from inferscale_server.fingerprint import Ingredients, fingerprint
from inferscale_server.index_choice import make_index
from inferscale_server.job import marks_of
from inferscale_server.kv_disk import KvDisk
from inferscale_server.memory import MemoryService
from inferscale_server.news import News
from inferscale_server.orphans import KV_FOLDER
from inferscale_server.recall import Recall, header_job_of
from inferscale_server.recipe import RecipeSizes, make_recipe
from inferscale_server.reserve import RESERVE_BYTES
from inferscale_server.salts import Salts
from inferscale_server.sessions import Sessions
from inferscale_server.staging import Stager
from inferscale_server.tiers import HostTier
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import LOCAL_TENANT, Owner
from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO, Wording


async def assemble(
    config: ServerConfig, engine_client: Any, state: State, door: EngineDoor, slot: str, folder: DataFolder
) -> tuple[Brain, Framer]:
    """`folder` is held, and the brain's from now on. Raises StartupError: fact store, embedder."""
    torch.set_num_threads(1)  # beside a busy engine, two threads made a query's embedding 30 times slower
    vllm_config = engine_client.vllm_config
    reports = await door.attach(compiled=not vllm_config.model_config.enforce_eager)
    support, ranks = support_of(reports, door.block_tokens), len(reports)
    tokenize = LineTokenizer(engine_client.renderer.get_tokenizer())
    framer = Framer(state.online_renderer, tokenize, slot, wording := _wording_of(config))
    model_name = state.openai_serving_models.base_model_paths[0].name
    header_ids = await framer.default_header(model_name)
    if header_ids is None:
        support.refusals.append(_unframed(state.online_renderer.chat_template or tokenize.chat_template))
    sessions = Sessions(config.max_sessions, config.session_idle_s)
    folder.announce(server_url(config.host, config.port))
    memory, embedder = await _open_stores(config, news := News())
    recipe = make_recipe(config.recipe, _sizes_of(config))
    template, rotary = state.online_renderer.chat_template, support.rotary_digest
    ingredients = _ingredients(vllm_config, tokenize, template, recipe.name, wording.fixed, rotary)
    rows = int(vllm_config.kv_transfer_config.kv_connector_extra_config["slab_rows"])
    catalog, metrics = Catalog(rows, fingerprint(ingredients)), Metrics()
    header = header_job_of(Owner(LOCAL_TENANT, ""), header_ids or ())
    max_model_len = vllm_config.model_config.max_model_len
    disk = await _open_disk(config, door, catalog, memory, metrics, ranks, support.cold_bytes_per_row)
    source = FactSource(memory.facts, memory.vectors, wording, memory.count)
    listeners = Listeners(metrics.encoded, metrics.encode_tokens)
    encoder = Encoder(catalog, recipe, door, tokenize, header, source, max_model_len, listeners, disk)
    host = _host_tier(catalog, vllm_config, door)
    tail = config.tail_tokens or 0
    recall = Recall(memory, catalog, encoder, tokenize, config.k, tail, config.fact_order, support.refusals, wording)
    stager = Stager(catalog, encoder.wipe, host, disk, config.stage_deadline_ms / 1e3, recall.text_s, metrics.staged)
    news.encoder, news.listeners = encoder, (sessions, *filter(None, (host,)), stager, recall.fact_lines)
    writer = ServedWriter(door, state.online_renderer, tokenize, model_name, max_model_len)
    extraction = build_extraction(config, memory, writer, metrics.extracted)
    brain = Brain(
        config=config,
        model_name=model_name,
        folder=folder,
        memory=memory,
        embedder=embedder,
        catalog=catalog,
        encoder=encoder,
        recall=recall,
        tokenize=tokenize,
        salts=Salts(secrets.token_bytes(32), catalog.fingerprint),
        metrics=metrics,
        support=support,
        header_key=header.key,
        engine_stats=door.stats,
        sessions=sessions,
        stager=stager,
        readers=news.readers,
        fingerprint_with=_with_adapters(ingredients, vllm_config.lora_config),
        host=host,
        disk=disk,
        extraction=extraction,
        backlog=None if extraction is None else backlog_of(extraction, metrics.turn_remembered),
    )
    return brain, framer


def _host_tier(catalog: Catalog, vllm_config: Any, door: EngineDoor) -> HostTier | None:
    """None without host rows."""
    rows = int(vllm_config.kv_transfer_config.kv_connector_extra_config["host_rows"])
    if not rows:
        return None
    host = HostTier(catalog, rows, door)
    catalog.on_commit = host.note
    return host


async def _open_stores(config: ServerConfig, sink: Any) -> tuple[MemoryService, Any]:
    source = (config.embedder, config.embedder_url, config.embedder_secret)
    embedder = await asyncio.to_thread(load_embedder, *source)
    store = FactStore(
        config.facts_path,
        max_facts_per_owner=config.max_facts_per_user,
        max_bytes_per_owner=config.max_bytes_per_user,
        reserve_bytes=RESERVE_BYTES,
    )
    memory = MemoryService(store, make_index(config.index), embedder, sink)
    await memory.start()
    return memory, embedder


async def _open_disk(
    config: ServerConfig,
    door: EngineDoor,
    catalog: Catalog,
    memory: MemoryService,
    metrics: Metrics,
    ranks: int,
    bytes_per_row: int,
) -> KvDisk:
    """Also where KV mode is refused: a delete must reach files of an earlier start."""
    folder, budget_bytes = config.data_path / KV_FOLDER, int(config.kv_disk_gib * 2**30)
    disk = KvDisk(folder, budget_bytes, ranks, bytes_per_row, catalog, door, metrics.kv_disk_event)
    marks = {owner.digest(): marks_of(memory.facts(owner), _wording_of(config)) for owner in memory.owners()}
    await asyncio.to_thread(disk.open, marks)
    return disk


def _unframed(template: object) -> str:
    if template is None:
        return "the model brings no chat template; name one: inferscale serve MODEL -- --chat-template FILE"
    return "the chat template does not let a system message stand where the memory would"


def _wording_of(config: ServerConfig) -> Wording:
    intro = MEMORY_INTRO if config.memory_intro is None else config.memory_intro.rstrip("\n") + "\n"
    return Wording(config.system_prompt or DEFAULT_SYSTEM, intro, config.fact_wrapper, config.memory_place)


def _sizes_of(config: ServerConfig) -> RecipeSizes:
    return RecipeSizes(config.primer_facts, config.window, config.neighbours, config.primer_choice)


def _ingredients(
    vllm_config: Any, tokenize: LineTokenizer, template: str | None, recipe: str, words: str, rotary: str
) -> Ingredients:
    """`template`: the one that vLLM was told to use instead of the tokenizer's."""
    model = vllm_config.model_config
    return Ingredients(
        weights=_weights_of(model),
        config=model.hf_config.to_dict(),
        tokenizer=tokenize.digest(),
        chat_template=str(template or tokenize.chat_template),
        dtype=str(model.dtype),
        kv_cache_dtype=str(vllm_config.cache_config.cache_dtype),
        tensor_parallel=vllm_config.parallel_config.tensor_parallel_size,
        adapter="",
        rotary=rotary,
        codec=codecs_of(vllm_config),
        recipe=recipe,
        words=words,
    )


def _with_adapters(base: Ingredients, lora: Any) -> Callable[[str], str]:
    applied = how_applied(lora)
    return lambda adapter: fingerprint(replace(base, adapter=f"{adapter} {applied}"))


def how_applied(lora: Any) -> str:
    """How vLLM puts an adapter's weights into the model, as far as keys and values follow from it. `lora`: LoRAConfig,
    None without adapters."""
    if lora is None:
        return ""
    modules = sorted(lora.target_modules or ())
    experts = (lora.enable_mixed_moe_lora_format, lora.enable_moe_shared_loras)
    return f"{lora.lora_dtype} {modules} {experts}"


def _weights_of(model: Any) -> str:
    """Name and commit of a hub model; of a local folder, names, sizes and times of its weight files. And what vLLM
    makes of them while it loads them, if anything."""
    folder = Path(model.model)
    if folder.is_dir():
        files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".gguf"))
        named = ";".join(f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files)
    else:  # a branch moves on
        named = f"{model.model}@{getattr(model.hf_config, '_commit_hash', None) or model.revision}"
    return named if model.quantization is None else f"{named} as {model.quantization}"
