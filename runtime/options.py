"""What a user may set about model, engine and server; no heavy imports, so that the command line starts fast."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deeproot.scheduler.config import EvictionPolicy, Policy, SpeculationConfig

LogFormat = Literal["text", "json"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
LoadFormat = Literal["auto", "gguf", "safetensors", "dummy"]
DeviceName = Literal["auto", "cpu", "cuda"]
AttentionBackendName = Literal["auto", "cpu", "torch", "triton", "flash"]
KVCacheDtype = Literal["auto", "fp8"]
Overlap = Literal["auto", "on", "off"]
Quantization = Literal["auto", "none", "gguf", "int8"]

DTYPES: tuple[Dtype, ...] = ("auto", "bfloat16", "float16", "float32")
LOAD_FORMATS: tuple[LoadFormat, ...] = ("auto", "gguf", "safetensors", "dummy")
DEVICES: tuple[DeviceName, ...] = ("auto", "cpu", "cuda")
ATTENTION_BACKENDS: tuple[AttentionBackendName, ...] = ("auto", "cpu", "torch", "triton", "flash")
KV_CACHE_DTYPES: tuple[KVCacheDtype, ...] = ("auto", "fp8")
QUANTIZATIONS: tuple[Quantization, ...] = ("auto", "none", "gguf", "int8")
OVERLAPS: tuple[Overlap, ...] = ("auto", "on", "off")
PAGE_SIZES = (16, 32, 64, 128)
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
TEMPLATE_TIMEOUT_S = 10.0
LOG_LEVELS = ("debug", "info", "warning", "error")

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


class SetupError(Exception):
    """What was asked for cannot be set up; the text is one line for the user that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to load a model and how much to give it."""

    model: str
    """A GGUF file, or a folder with `config.json`, weights and tokenizer."""
    load_format: LoadFormat = "auto"
    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    """auto: weights stay as a GGUF file holds them where it can be; gguf: an error if not; int8: they are rounded to 8 bits."""
    device: DeviceName = "auto"
    threads: int | None = None
    """That compute on a CPU; None: a server chooses by measuring, `LLM` leaves torch's number as it is."""
    attention_backend: AttentionBackendName = "auto"
    kv_cache_dtype: KVCacheDtype = "auto"
    """auto: the model's dtype. fp8: e4m3 with a scale a head, half the memory."""
    page_size: int = 64
    """Tokens a page."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None: what the model and the KV pool allow."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    schedule_policy: Policy = "hrrn"
    """Which waiting request starts next."""
    reserve_output_tokens: int = 128
    """Tokens of output for which each running request keeps room when another starts."""
    max_itl_ms: float = 200.0
    """How long a step may take while requests write; prompts are computed in smaller chunks then. 0: as long as it takes."""
    speculative_config: SpeculationConfig | None = None
    """How tokens are guessed ahead; None: not at all."""
    overlap: Overlap = "auto"
    """Make the next step while one runs; auto: on a GPU."""
    enforce_eager: bool = False
    """No CUDA graphs."""
    deterministic: bool = False
    """Logits of a token depend on what it follows alone, bit for bit; slower."""
    kv_cache_memory_bytes: int | None = None
    """None: a share of the memory that is free."""
    gpu_memory_utilization: float = 0.9
    """Of a GPU's memory, what weights and KV cache take together, if `kv_cache_memory_bytes` is not given."""
    chat_template: Path | None = None
    """A file with a Jinja template that replaces the model's own."""
    chat_template_timeout_s: float = TEMPLATE_TIMEOUT_S
    """How long a chat template, which runs in a process of its own, may take for one conversation."""
    tool_call_parser: str | None = None
    """Name of the format of tool calls; None: as the chat template tells."""
    reasoning_parser: str | None = None
    """Name of the format of reasoning, "none" to leave it in the content; None: as the chat template tells."""
    keep_thinking: bool = False
    """Show the thinking of earlier replies where the template would drop it, so that earlier text stays the same."""
    continuation_memory_bytes: int = 64 * 2**20
    """For the ids of replies, so that a conversation goes on with the very tokens it had; 0 switches that off."""
    radix_eviction_policy: EvictionPolicy = "hints"
    """Which cached pages go first; lru: least recently used alone, without leases and sessions."""
    max_lease_s: float = 3600.0
    """Longest lease on cached tokens, in seconds."""
    max_leases: int = 256
    """Leases that an API key may have at a time."""
    max_leased_share: float = 0.75
    """Of the KV cache, what an API key may have under leases."""
    seed: int = 0
    """Of requests without a seed of their own, and of dummy weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """What one client may take. A tenant is an API key; without keys all requests are one tenant's."""

    concurrent_requests: int | None = None
    """Of a tenant, at a time; None: no limit."""
    requests_per_minute: int | None = None
    """Of a tenant."""
    tokens_per_minute: int | None = None
    """Of a tenant: prompt tokens that are computed, and output tokens."""
    request_timeout_s: float | None = None
    """From a request's beginning to the end of its answer; None: as long as it takes."""
    upload_timeout_s: float = 60.0
    """For the body of a request to arrive."""
    slow_reader_timeout_s: float = 60.0
    """How long a client may let a stream stand still before it is cut off."""
    keep_alive_timeout_s: int = 75
    """How long a connection may be idle between requests before it is closed. Longer than clients keep theirs (httpx 5 s,
    aiohttp 15 s, proxies often 60 s), so that they close it: a request sent at the moment in which the server closes is lost."""
    stuck_after_s: float = 60.0
    """A step of the engine that takes longer is named in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to offer it over HTTP."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free port."""
    served_model_names: tuple[str, ...] = ()
    """Names that requests may use; empty: one made from the model's path."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    shutdown_timeout_s: float = 5.0
    """How long requests in flight may go on after SIGTERM."""
    max_queued_requests: int = 1024
    """Requests that may wait, beyond those that run."""
    max_body_bytes: int = 32 * 2**20
    response_store: Path | None = None
    """SQLite file of the Responses API's stored responses; None: kept in memory, and gone when the server ends."""
    response_store_bytes: int = 64 * 2**20
    working_set_store: Path | None = None
    """A folder for clients' working sets; None: kept in memory, and gone when the server ends."""
    max_working_sets: int = 64
    """Of one client."""
    working_set_bytes: int = 64 * 2**20
    """Of the events of one client's working sets."""
    shared_prefixes: Path | None = None
    """A file of the beginnings of prompts that all clients share in the cache; None: they share none."""
    explain_memory_bytes: int = 32 * 2**20
    """For the sequences of late requests, to explain what was not cached; 0 switches that off."""
    dollars_per_hour: float | None = None
    """What the machine costs, for the prices that the server tells; None: not known."""
    cors_origins: tuple[str, ...] = ()
    """Sites whose pages may use the server, such as `https://example.org`; `*` is all of them."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a loopback server without keys answers to, beside localhost and addresses."""
    otlp_traces_endpoint: str | None = None
    """Where traces go, by OTLP over HTTP; None: nowhere."""
    limits: LimitOptions = field(default_factory=LimitOptions)
    log_level: str = "info"
    log_format: LogFormat = "text"


def check_files(options: EngineOptions) -> None:
    """Raise SetupError if a file that was named does not exist."""
    if not Path(options.model).exists():
        raise SetupError(
            f"--model {options.model} does not exist: give a GGUF file or a folder with a config.json"
        )
    if options.chat_template is not None and not options.chat_template.is_file():
        raise SetupError(f"--chat-template {options.chat_template} is not a file")


def parse_bytes(text: str) -> int:
    """`4GiB`, `512M`, `1.5g`, `1000000` as a number of bytes; `KiB` and `Ki` are 1024, `KB` and `K` 1000.

    Raises ValueError.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is not a size: write it like 4GiB, 512M or 1000000")
    number, unit = found.groups()
    return int(float(number) * _UNITS[(unit or "").lower()])


def format_bytes(count: int) -> str:
    """`1.5 GiB`"""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
