"""From a user's options to an engine that is loaded, checked and warm."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from deeproot.engine.attention_choice import AttentionNeeds, Choice, choose_attention, make_page_ops
from deeproot.engine.config import ModelConfig
from deeproot.engine.grammar import GrammarError, TokenBytes
from deeproot.engine.grammar_llguidance import LLGuidanceBackend
from deeproot.engine.kv_pool import FP8, KVLayout, KVPool
from deeproot.engine.kv_scales import measure_kv_scales
from deeproot.engine.leases import LeaseLimits
from deeproot.engine.loading import LoadedModel, is_gguf, load_model, make_attention, resolve_dtype
from deeproot.engine.quantization import Quantization, grouped_problem
from deeproot.engine.radix import RadixCache
from deeproot.runtime.engine_messages import EngineInfo
from deeproot.runtime.memory import available_memory
from deeproot.runtime.options import DeviceName, EngineOptions, SetupError, check_files, format_bytes
from deeproot.runtime.runner_setup import batch_limits, make_runner
from deeproot.runtime.speech import Speech, load_texts, make_speech
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.constraints import Constraints
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.rate import PrefillRate
from deeproot.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

_KV_SHARE = 0.25
"""Of the free memory, what the KV cache takes if nothing is said: the rest stays for the machine's other work."""
_KV_BYTES_IF_UNKNOWN = 2 * 2**30
_MASK_THREADS = 4
"""Between which the masks of a step are divided; a mask takes some ten microseconds."""


@dataclass(frozen=True, slots=True)
class EngineSide:
    """A loaded, warm engine without its words: what an engine's process holds."""

    scheduler: Scheduler
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model in this process, with everything that it takes to run it and to speak with it."""

    speech: Speech
    scheduler: Scheduler
    info: EngineInfo


def choose_device(name: DeviceName) -> torch.device:
    """The device of that name; "auto" is a CUDA GPU if torch finds one. Raises SetupError."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise SetupError(
            "--device cuda: torch finds no CUDA GPU; use --device cpu, or ask deeproot doctor why"
        )
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def check_options(options: EngineOptions) -> None:
    """Raise SetupError for what can be seen to be wrong before anything is loaded."""
    check_files(options)
    choose_device(options.device)
    _scheduler_config(options, options.max_model_len or 1)


def load_engine(
    options: EngineOptions, on_progress: Callable[[int, int], None] | None = None
) -> LoadedEngine:
    """Load tokenizer and weights, size the KV pool, and run the model once.

    `on_progress` is told bytes of weights done and bytes in all. Raises SetupError, in one line, for whatever is
    wrong with the options or the model's files.
    """
    check_options(options)
    texts = load_texts(options)
    engine = load_scheduler(options, texts.assets.token_bytes, on_progress)
    return LoadedEngine(make_speech(texts, engine.info), engine.scheduler, engine.info)


def load_scheduler(
    options: EngineOptions,
    token_bytes: Callable[[], TokenBytes],
    on_progress: Callable[[int, int], None] | None = None,
) -> EngineSide:
    """As `load_engine`, without tokenizer and template: of the vocabulary only the tokens' bytes, which are fetched
    while the weights are loaded. Raises SetupError."""
    check_options(options)
    device = choose_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with ThreadPoolExecutor(1, thread_name_prefix="deeproot-vocabulary") as reader:
        tokens = reader.submit(token_bytes)
        try:
            loaded = load_model(
                options.model,
                options.load_format,
                options.dtype,
                device,
                on_progress,
                options.max_model_len,
                _quantization(options, device),
            )
            constraints = _constraints(tokens.result(), loaded.config.vocab_size)
        except (OSError, ValueError) as error:
            raise SetupError(f"cannot load {options.model}: {error}") from None
    if loaded.grouped:
        logger.info("weights: quantised ones stay so (--quantization %s)", options.quantization)
    layout = loaded.config.kv_layout(
        options.page_size, FP8 if options.kv_cache_dtype == "fp8" else loaded.dtype
    )
    attention = _choose_attention(options, loaded, layout)
    scheduler = _build_scheduler(options, loaded, layout, attention, constraints)
    _warm_up(scheduler)
    info = EngineInfo(
        max_model_len=scheduler.config.max_model_len,
        max_num_seqs=scheduler.config.max_num_seqs,
        vocab_size=loaded.config.vocab_size,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(device),
        attention=attention.name,
    )
    return EngineSide(scheduler, info)


def _quantization(options: EngineOptions, device: torch.device) -> Quantization:
    """What can be had of what is asked for. Raises SetupError, ValueError (dtype)."""
    wanted = options.quantization
    if wanted == "none" or (wanted == "auto" and not _is_quantised_file(options)):
        return "none"
    needs = AttentionNeeds(device, resolve_dtype(options.dtype, device), deterministic=options.deterministic)
    if options.load_format == "dummy":
        problem: str | None = "made-up weights are not quantised"
    elif options.kv_cache_dtype == "fp8":
        problem = "it cannot be had with K and V in e4m3 (--kv-cache-dtype auto)"
    else:
        problem = grouped_problem(needs, options.attention_backend)
    if problem is None:
        return wanted
    if wanted != "auto":
        raise SetupError(f"--quantization {wanted}: {problem}; --quantization auto goes on without")
    logger.info("weights do not stay quantised: %s", problem)
    return "none"


def _is_quantised_file(options: EngineOptions) -> bool:
    """Whether there may be anything in it that could stay quantised."""
    return options.load_format in ("auto", "gguf") and is_gguf(Path(options.model))


def _choose_attention(options: EngineOptions, loaded: LoadedModel, layout: KVLayout) -> Choice:
    needs = AttentionNeeds(
        loaded.device, loaded.dtype, layout, loaded.config.num_qo_heads, options.deterministic
    )
    try:
        choice = choose_attention(options.attention_backend, needs)
    except ValueError as error:
        raise SetupError(str(error)) from None
    logger.info("attention: %s (%s)", choice.name, choice.why)
    return choice


def _constraints(tokens: TokenBytes, vocab_size: int) -> Constraints | None:
    """None, with a warning, for a vocabulary that no grammar can be held over."""
    try:
        return Constraints(LLGuidanceBackend(tokens, vocab_size, _MASK_THREADS))
    except GrammarError as error:
        logger.warning("outputs cannot be constrained: %s", error)
        return None


def _build_scheduler(
    options: EngineOptions,
    loaded: LoadedModel,
    layout: KVLayout,
    attention: Choice,
    constraints: Constraints | None,
) -> Scheduler:
    config = loaded.config
    budget = options.kv_cache_memory_bytes or _default_kv_bytes(options, loaded.device)
    num_pages = budget // layout.page_bytes
    if num_pages < 1:
        raise SetupError(
            f"--kv-cache-memory-bytes: {format_bytes(budget)} is less than one page of {options.page_size} tokens, "
            f"which takes {format_bytes(layout.page_bytes)}"
        )
    max_model_len = _max_model_len(options, config, num_pages * options.page_size)
    scales = None
    if layout.dtype == FP8:
        scales = measure_kv_scales(loaded.model, loaded.dtype, loaded.device)
    pool = KVPool(layout, num_pages, loaded.device, scales, make_page_ops(attention.name))
    limits = batch_limits(options, max_model_len)
    backend = make_attention(
        config, pool, attention.name, loaded.dtype, limits, deterministic=options.deterministic
    )
    runner = make_runner(options, loaded, pool, backend)
    logger.info(
        "KV cache: %s, %d pages of %d tokens%s; window of %d tokens; %s on %s",
        format_bytes(num_pages * layout.page_bytes),
        num_pages,
        options.page_size,
        " in e4m3" if layout.dtype == FP8 else "",
        max_model_len,
        str(loaded.dtype).removeprefix("torch."),
        loaded.device,
    )
    config_of_scheduler = _scheduler_config(options, max_model_len)
    cache = RadixCache(options.page_size)
    leased_pages = int(num_pages * options.max_leased_share)
    cache.leases.limits = LeaseLimits(options.max_lease_s, options.max_leases, leased_pages)
    return Scheduler(config_of_scheduler, cache, pool, runner, constraints)


def _max_model_len(options: EngineOptions, config: ModelConfig, capacity: int) -> int:
    asked, trained = options.max_model_len, config.max_position_embeddings
    if asked is None:
        if capacity < trained:
            logger.warning(
                "the KV cache holds %d tokens, so the window is that and not the model's %d: "
                "give more with --kv-cache-memory-bytes",
                capacity,
                trained,
            )
        return min(capacity, trained)
    _check_window(options, trained)
    if asked > capacity:
        raise SetupError(
            f"--max-model-len {asked} is more than the {capacity} tokens that the KV cache holds: lower it, or give "
            "more memory with --kv-cache-memory-bytes"
        )
    return asked


def _check_window(options: EngineOptions, trained: int) -> None:
    asked = options.max_model_len
    if asked is not None and asked > trained:
        raise SetupError(
            f"--max-model-len {asked} is more than the {trained} tokens that the model can handle"
        )


def _default_kv_bytes(options: EngineOptions, device: torch.device) -> int:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(total * options.gpu_memory_utilization) - (total - free))
    available = available_memory()
    return _KV_BYTES_IF_UNKNOWN if available is None else int(available * _KV_SHARE)


def _scheduler_config(options: EngineOptions, max_model_len: int) -> SchedulerConfig:
    try:
        overlap = options.overlap == "on" or (
            options.overlap == "auto" and choose_device(options.device).type == "cuda"
        )
        return SchedulerConfig(
            options.max_num_seqs,
            options.max_num_batched_tokens,
            max_model_len,
            overlap,
            options.speculative_config,
            policy=options.schedule_policy,
            reserved_output=options.reserve_output_tokens,
            max_itl_s=options.max_itl_ms / 1000 or None,
            eviction=options.radix_eviction_policy,
        )
    except ValueError as error:
        raise SetupError(str(error)) from None


def _warm_up(scheduler: Scheduler) -> None:
    """Run a prompt and a decoding step, so that the first request does not pay for first uses; leaves no trace."""
    num_tokens = min(8, scheduler.config.max_model_len - 2)
    if num_tokens < 1:
        return
    ids = np.zeros(num_tokens, dtype=np.int32).tobytes()
    scheduler.add(AddRequest("warm-up", ids, SamplingParams(max_tokens=2, temperature=1.0, seed=0)))
    errors = []
    while scheduler.has_work:
        errors += [output.error for output in scheduler.step() if output.error is not None]
    if errors:
        raise SetupError(f"the model failed on its first tokens: {errors[0]}")
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))
    scheduler.counters.clear()
    scheduler.prefill_rate = PrefillRate()
