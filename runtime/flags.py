"""The flags that several commands share, and how their values are read."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deeproot.runtime.options import (
    ATTENTION_BACKENDS,
    DEVICES,
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    OVERLAPS,
    PAGE_SIZES,
    QUANTIZATIONS,
    EngineOptions,
    parse_bytes,
)
from deeproot.runtime.speculative import EXAMPLE, parse_speculative
from deeproot.scheduler.config import EVICTION_POLICIES, POLICIES, SpeculationConfig

Number = TypeVar("Number", int, float)


def add_engine_flags(command: argparse.ArgumentParser, *, model_required: bool) -> None:
    """The flags that say how to load a model and how to run it."""
    default = EngineOptions(model="")
    group = command.add_argument_group("model and engine")
    group.add_argument(
        "--model",
        "--model-path",
        required=model_required,
        metavar="PATH",
        help="a GGUF file, a model folder, or a name that deeproot models lists",
    )
    _add_model(group, default)
    _add_texts(group, default)
    _add_sizes(group, default)
    _add_steps(group, default)
    _add_cache(group, default)
    _add_reuse(group, default)
    group.add_argument("--seed", type=int, default=default.seed, help="(default: %(default)s)")


def _add_model(group: argparse._ArgumentGroup, default: EngineOptions) -> None:
    """The model, and where and in what numbers it is computed."""
    group.add_argument("--config", metavar="FILE", help="YAML file with names of flags and their values")
    group.add_argument(
        "--load-format", choices=LOAD_FORMATS, default=default.load_format, help="(default: auto)"
    )
    group.add_argument(
        "--dtype", choices=DTYPES, default=default.dtype, help="of weights and KV (default: auto)"
    )
    group.add_argument(
        "--quantization",
        "-q",
        choices=QUANTIZATIONS,
        default=default.quantization,
        help="of weights, on a CPU; auto: as a GGUF file holds them where that can be multiplied; gguf: an error if "
        "not; int8: rounded to 8 bits; none: in --dtype (default: auto)",
    )
    group.add_argument("--device", choices=DEVICES, default=default.device, help="(default: auto)")
    group.add_argument(
        "--threads",
        "-t",
        type=whole(1),
        metavar="N",
        help="that compute on a CPU (default: OMP_NUM_THREADS, or as many as are fastest by a short measurement)",
    )
    group.add_argument(
        "--attention-backend",
        choices=ATTENTION_BACKENDS,
        default=default.attention_backend,
        help="what computes attention; deeproot doctor says what auto comes to (default: auto)",
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default=default.kv_cache_dtype,
        help="auto: as --dtype; fp8: half the memory, less exact (default: auto)",
    )


def _add_texts(group: argparse._ArgumentGroup, default: EngineOptions) -> None:
    """How its texts are read and written."""
    group.add_argument("--chat-template", type=Path, metavar="FILE", help="Jinja template to use for chats")
    group.add_argument(
        "--chat-template-timeout",
        type=number(0.1, 600),
        default=default.chat_template_timeout_s,
        metavar="SECONDS",
        help="how long the chat template may take for one conversation (default: %(default)s)",
    )
    group.add_argument(
        "--tool-call-parser",
        metavar="NAME",
        help="format of tool calls, by its own name or by vLLM's or SGLang's (default: as the chat template tells)",
    )
    group.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        help="format of reasoning; none leaves it in the content (default: as the chat template tells)",
    )


def _add_sizes(group: argparse._ArgumentGroup, default: EngineOptions) -> None:
    """What a step and the queue hold."""
    group.add_argument(
        "--max-model-len",
        "--context-length",
        type=whole(1),
        metavar="N",
        help="tokens of prompt and output together",
    )
    group.add_argument(
        "--max-num-seqs",
        "--max-running-requests",
        type=whole(1),
        default=default.max_num_seqs,
        metavar="N",
        help="requests that run at a time (default: %(default)s)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
        type=whole(1),
        default=default.max_num_batched_tokens,
        metavar="N",
        help="tokens computed in a step at most (default: %(default)s)",
    )
    group.add_argument(
        "--schedule-policy",
        choices=POLICIES,
        default=default.schedule_policy,
        help="which waiting request starts next: first come first, longest cached prefix, or highest response ratio "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--reserve-output-tokens",
        type=whole(1),
        default=default.reserve_output_tokens,
        metavar="N",
        help="of output, for which each running request keeps room when another starts (default: %(default)s)",
    )
    group.add_argument(
        "--max-itl-ms",
        type=number(0, 1e6),
        default=default.max_itl_ms,
        metavar="MS",
        help="between tokens of running requests while prompts are computed; 0: no limit (default: %(default)s)",
    )


def _add_steps(group: argparse._ArgumentGroup, default: EngineOptions) -> None:
    """How steps are taken."""
    group.add_argument(
        "--speculative-config",
        type=speculative,
        default=default.speculative_config,
        metavar="JSON",
        help=f"guess tokens ahead from what was read and written: such as '{EXAMPLE}' (default: off)",
    )
    group.add_argument(
        "--overlap",
        choices=OVERLAPS,
        default=default.overlap,
        help="make the next step while one runs; auto: on a GPU (default: auto)",
    )
    group.add_argument(
        "--enforce-eager", "--disable-cuda-graph", action="store_true", help="use no CUDA graphs on a GPU"
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="the same logits bit for bit whether a prompt is cached or not, cut or not, alone or in a batch; slower",
    )


def _add_cache(group: argparse._ArgumentGroup, default: EngineOptions) -> None:
    """The KV cache."""
    group.add_argument(
        "--page-size",
        "--block-size",
        type=int,
        choices=PAGE_SIZES,
        default=default.page_size,
        help="tokens a page of the KV cache (default: %(default)s)",
    )
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=size,
        metavar="SIZE",
        help="memory for the KV cache, such as 4GiB or 512M (default: a share of what is free)",
    )
    group.add_argument(
        "--gpu-memory-utilization",
        "--mem-fraction-static",
        type=number(0.01, 0.99),
        default=default.gpu_memory_utilization,
        metavar="SHARE",
        help="of a GPU's free memory, what weights and KV cache may take (default: %(default)s)",
    )


def _add_reuse(group: argparse._ArgumentGroup, default: EngineOptions) -> None:
    """What is kept of earlier requests."""
    group.add_argument(
        "--keep-thinking",
        action="store_true",
        help="show earlier replies with their thinking where the template drops it: nothing is computed twice, but "
        "prompts grow and are not as the model was trained",
    )
    group.add_argument(
        "--continuation-memory-bytes",
        type=size_or_zero,
        default=default.continuation_memory_bytes,
        metavar="SIZE",
        help="memory for the token ids of replies; 0: off (default: 64MiB)",
    )
    group.add_argument(
        "--radix-eviction-policy",
        choices=EVICTION_POLICIES,
        default=default.radix_eviction_policy,
        help="which cached pages go first: by class, leases and sessions, or least recently used alone "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--max-lease-s",
        type=number(0, 1e9),
        default=default.max_lease_s,
        metavar="SECONDS",
        help="longest lease on cached tokens; 0: none (default: %(default)s)",
    )
    group.add_argument(
        "--max-leases",
        type=whole(0),
        default=default.max_leases,
        metavar="N",
        help="leases that an API key may have at a time (default: %(default)s)",
    )
    group.add_argument(
        "--max-leased-share",
        type=number(0, 1),
        default=default.max_leased_share,
        metavar="SHARE",
        help="of the KV cache, what an API key may have under leases (default: %(default)s)",
    )


def _checked(
    convert: Callable[[str], Number], low: float, high: float | None, kind: str
) -> Callable[[str], Number]:
    def parse(text: str) -> Number:
        try:
            value = convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind}") from None
        if not (low <= value and (high is None or value <= high)):
            limits = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {text}")
        return value

    return parse


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    return _checked(int, low, high, "a whole number")


def number(low: float, high: float | None = None) -> Callable[[str], float]:
    return _checked(float, low, high, "a number")


def speculative(text: str) -> SpeculationConfig | None:
    try:
        return parse_speculative(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError("must be more than 0 bytes")
    return size


def size_or_zero(text: str) -> int:
    """As `size`, for what 0 switches off."""
    return 0 if text.strip() == "0" else size(text)
