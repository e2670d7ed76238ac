"""From a user's options to an engine that is loaded, checked and warm."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.config import ModelConfig
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import LoadedModel, load_model
from deeproot.engine.radix import RadixCache
from deeproot.engine.runner import Runner
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.memory import available_memory
from deeproot.runtime.options import DeviceName, EngineOptions, SetupError, check_files, format_bytes
from deeproot.runtime.sampling_options import SamplingDefaults
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.scheduler import Counters, Scheduler

logger = logging.getLogger(__name__)

_KV_SHARE = 0.25
"""Of the free memory, what the KV cache takes if nothing is said: the rest stays for the machine's other work."""
_KV_SHARE_CUDA = 0.85
_KV_BYTES_IF_UNKNOWN = 2 * 2**30


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model with everything that it takes to run it and to speak with it."""

    assets: ModelAssets
    template: ChatTemplate | None
    """None: the model has no chat template."""
    scheduler: Scheduler
    defaults: SamplingDefaults
    dtype: torch.dtype
    device: torch.device
    attention: str
    """Name of the attention backend."""

    def require_template(self) -> ChatTemplate:
        """The chat template; TemplateError, which says what to do, if there is none."""
        return self.template or self.assets.chat_template()


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
    """Load weights and tokenizer, size the KV pool, and run the model once.

    `on_progress` is told bytes of weights done and bytes in all. Raises SetupError, in one line, for whatever is
    wrong with the options or the model's files.
    """
    check_options(options)
    device = choose_device(options.device)
    try:
        assets = ModelAssets.load(options.model)
        template = _chat_template(options, assets)
        if assets.context_length is not None:
            _check_window(options, assets.context_length)
        loaded = load_model(options.model, options.load_format, options.dtype, device, on_progress)
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot load {options.model}: {error}") from None
    scheduler = _build_scheduler(options, loaded)
    _warm_up(scheduler)
    defaults = _sampling_defaults(assets, loaded.config, scheduler.config.max_model_len)
    return LoadedEngine(assets, template, scheduler, defaults, loaded.dtype, device, TorchAttention.name)


def _chat_template(options: EngineOptions, assets: ModelAssets) -> ChatTemplate | None:
    if options.chat_template is not None:
        return assets.chat_template(options.chat_template.read_text(encoding="utf-8"))
    try:
        return assets.chat_template()
    except TemplateError:
        if assets.chat_templates:
            raise
        return None


def _build_scheduler(options: EngineOptions, loaded: LoadedModel) -> Scheduler:
    config = loaded.config
    layout = config.kv_layout(options.page_size, loaded.dtype)
    budget = options.kv_cache_memory_bytes or _default_kv_bytes(loaded.device)
    num_pages = budget // layout.page_bytes
    if num_pages < 1:
        raise SetupError(
            f"--kv-cache-memory-bytes: {format_bytes(budget)} is less than one page of {options.page_size} tokens, "
            f"which takes {format_bytes(layout.page_bytes)}"
        )
    max_model_len = _max_model_len(options, config, num_pages * options.page_size)
    pool = KVPool(layout, num_pages, loaded.device)
    runner = Runner(loaded.model, pool, TorchAttention(pool), loaded.device)
    logger.info(
        "KV cache: %s, %d pages of %d tokens; window of %d tokens; %s on %s",
        format_bytes(num_pages * layout.page_bytes),
        num_pages,
        options.page_size,
        max_model_len,
        str(loaded.dtype).removeprefix("torch."),
        loaded.device,
    )
    return Scheduler(_scheduler_config(options, max_model_len), RadixCache(options.page_size), pool, runner)


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


def _default_kv_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _KV_SHARE_CUDA)
    available = available_memory()
    return _KV_BYTES_IF_UNKNOWN if available is None else int(available * _KV_SHARE)


def _scheduler_config(options: EngineOptions, max_model_len: int) -> SchedulerConfig:
    try:
        return SchedulerConfig(options.max_num_seqs, options.max_num_batched_tokens, max_model_len)
    except ValueError as error:
        raise SetupError(str(error)) from None


def _sampling_defaults(assets: ModelAssets, config: ModelConfig, max_model_len: int) -> SamplingDefaults:
    said = assets.generation
    if said.repetition_penalty not in (None, 1.0):
        logger.warning(
            "the model asks for a repetition penalty of %g, which is not applied", said.repetition_penalty
        )
    return SamplingDefaults(
        temperature=1.0 if said.temperature is None else said.temperature,
        top_p=said.top_p or 1.0,
        top_k=said.top_k or 0,
        min_p=said.min_p or 0.0,
        max_new_tokens=said.max_new_tokens,
        end_token_ids=tuple(sorted(assets.end_token_ids)),
        vocab_size=config.vocab_size,
        max_model_len=max_model_len,
    )


def _warm_up(scheduler: Scheduler) -> None:
    """Run a prompt and a decoding step, so that the first request does not pay for first uses; leaves no trace."""
    num_tokens = min(8, scheduler.config.max_model_len - 2)
    if num_tokens < 1:
        return
    ids = np.zeros(num_tokens, dtype=np.int32).tobytes()
    scheduler.add(AddRequest("warm-up", ids, SamplingParams(max_tokens=2, temperature=0.0, seed=0)))
    errors = []
    while scheduler.has_work:
        errors += [output.error for output in scheduler.step() if output.error is not None]
    if errors:
        raise SetupError(f"the model failed on its first tokens: {errors[0]}")
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))
    scheduler.counters = Counters()
