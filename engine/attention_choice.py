"""Which code computes attention, and why: one table of backends, best first."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.attention_cpu import CpuAttention
from deeproot.engine.attention_flash import FlashAttention
from deeproot.engine.attention_tiles import TileAttention
from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.kv_pool import FP8, KVLayout, KVPool
from deeproot.engine.page_ops import PageOps, TorchPageOps
from deeproot.kernels.configs import HEAD_DIMS, MAX_GROUP
from deeproot.kernels.cpu.build import BuildError, abilities_here
from deeproot.kernels.cpu.native import KINDS, MAX_HEAD_DIM, CpuLibrary

AttentionName = Literal["cpu", "torch", "triton", "flash"]
_HOPPER = (9, 0)


class AttentionError(ValueError):
    """The backend that was asked for cannot do what is needed here. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a backend must cope with; without a model only the device is known."""

    device: torch.device
    dtype: torch.dtype | None = None
    """What the model computes in."""
    layout: KVLayout | None = None
    num_qo_heads: int = 0
    deterministic: bool = False
    """Whether a row's result may depend on that row and what it sees only."""


@dataclass(frozen=True, slots=True)
class AttentionSetup:
    """What a backend is made of. scale, cap and windows as in TorchAttention."""

    pool: KVPool
    dtype: torch.dtype
    num_qo_heads: int
    limits: BatchLimits
    scale: float | None = None
    cap: float | None = None
    windows: Sequence[int | None] = ()
    deterministic: bool = False
    """As in AttentionNeeds."""


@dataclass(frozen=True, slots=True)
class Choice:
    name: AttentionName
    why: str


@dataclass(frozen=True, slots=True)
class _Backend:
    name: AttentionName
    why: str
    """What speaks for it, if it is chosen by itself."""
    lacks: Callable[[AttentionNeeds], str | None]
    """Why it cannot be used; None if it can."""
    stands_back: Callable[[AttentionNeeds], str | None]
    """Why it is not chosen by itself although it could be used; None if it is."""
    make: Callable[[AttentionSetup], AttentionBackend]
    make_page_ops: Callable[[], PageOps]


def choose_attention(wanted: str, needs: AttentionNeeds) -> Choice:
    """The backend of that name, or for "auto" the first of the table that can be used and does not stand back.

    Raises AttentionError if the one that was named cannot be used.
    """
    if wanted != "auto":
        backend = _named(wanted)
        problem = backend.lacks(needs)
        if problem is not None:
            raise AttentionError(f"--attention-backend {wanted}: {problem}")
        return Choice(backend.name, "asked for")
    passed: list[str] = []
    for backend in _BACKENDS:
        problem = backend.stands_back(needs) or backend.lacks(needs)
        if problem is None:
            return Choice(backend.name, "; ".join((backend.why, *passed)))
        passed.append(f"not {backend.name}: {problem}")
    raise AssertionError("torch can always be used")


def make_backend(name: str, setup: AttentionSetup) -> AttentionBackend:
    """The backend itself. Raises ValueError for shapes that it has no kernels for."""
    return _named(name).make(setup)


def make_page_ops(name: str) -> PageOps:
    """What zeroes and copies pages for that backend."""
    return _named(name).make_page_ops()


def _named(name: str) -> _Backend:
    for backend in _BACKENDS:
        if backend.name == name:
            return backend
    known = ", ".join(backend.name for backend in _BACKENDS)
    raise AttentionError(f"attention backend {name!r} is not known; known: auto, {known}")


def _nothing(needs: AttentionNeeds) -> None:
    return None


def _make_torch(setup: AttentionSetup) -> AttentionBackend:
    if setup.deterministic:
        return TileAttention(setup.pool, setup.scale, setup.cap, setup.windows)
    return TorchAttention(setup.pool, setup.scale, setup.cap, setup.windows, setup.dtype)


def _cpu_lacks(needs: AttentionNeeds) -> str | None:
    layout = needs.layout
    if needs.device.type != "cpu":
        return "it is for CPUs"
    if needs.deterministic:
        return "a chunk's sums are not taken as a single token's are, so that --deterministic cannot use it: leave it out"
    if layout is not None and layout.dtype not in KINDS:
        return "it has no e4m3 K and V: use --kv-cache-dtype auto"
    if layout is not None and layout.head_dim > MAX_HEAD_DIM:
        return f"heads of {layout.head_dim} are larger than {MAX_HEAD_DIM}"
    try:
        # Compiled here if it has not been yet: only then is it known to be usable.
        CpuLibrary()
    except (BuildError, OSError) as error:
        return str(error)
    return None


def _cpu_stands_back(needs: AttentionNeeds) -> str | None:
    if needs.device.type != "cpu":
        return "it is for CPUs"
    if not abilities_here().avx2:
        return "this CPU has neither AVX-512 nor AVX2; --attention-backend cpu tries it"
    return None


def _make_cpu(setup: AttentionSetup) -> AttentionBackend:
    return CpuAttention(setup.pool, setup.num_qo_heads, CpuLibrary(), setup.scale, setup.cap, setup.windows)


def _triton_lacks(needs: AttentionNeeds) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    return _device_lacks(needs) or _shape_lacks(needs)


def _device_lacks(needs: AttentionNeeds) -> str | None:
    if needs.device.type == "cuda":
        capability = torch.cuda.get_device_capability(needs.device)
        wanted, what = (8, 0), "Triton's kernels"
        if needs.layout is not None and needs.layout.dtype == FP8:
            wanted, what = (8, 9), "e4m3 K and V"
        return None if capability >= wanted else f"{what} need a GPU of sm_{wanted[0]}{wanted[1]} or later"
    # Read when Triton is imported, which must not happen before it is known to be wanted.
    if not importlib.import_module("deeproot.kernels.launch").INTERPRETED:
        return "it needs a CUDA GPU (or TRITON_INTERPRET=1, to check its results on a CPU, slowly)"
    half = {torch.bfloat16, FP8}
    if needs.dtype in half or (needs.layout is not None and needs.layout.dtype in half):
        return "Triton's interpreter is wrong about bfloat16 and e4m3: use --dtype float32 and --kv-cache-dtype auto"
    return None


def _shape_lacks(needs: AttentionNeeds) -> str | None:
    layout = needs.layout
    if layout is None:
        return None
    if layout.head_dim not in HEAD_DIMS:
        return (
            f"there are no kernels for heads of {layout.head_dim}, only for {', '.join(map(str, HEAD_DIMS))}"
        )
    group = needs.num_qo_heads // layout.num_kv_heads
    if group > MAX_GROUP:
        return f"there are no kernels for {group} query heads a KV head, only for up to {MAX_GROUP}"
    return None


def _triton_stands_back(needs: AttentionNeeds) -> str | None:
    if needs.device.type != "cuda":
        return "there is no CUDA GPU"
    capability = torch.cuda.get_device_capability(needs.device)
    if capability != _HOPPER:
        return (
            f"its kernels are made and checked for Hopper (sm_90) and this GPU is sm_{capability[0]}{capability[1]}; "
            "--attention-backend triton tries it"
        )
    return None


def _make_triton(setup: AttentionSetup) -> AttentionBackend:
    # Not at the top: Triton is not there on every machine that runs the torch backend.
    from deeproot.engine.attention_triton import ROW_BY_ROW, TritonAttention

    return TritonAttention(
        setup.pool,
        setup.num_qo_heads,
        setup.limits,
        setup.dtype,
        setup.scale,
        setup.cap,
        setup.windows,
        ROW_BY_ROW if setup.deterministic else None,
    )


def _triton_page_ops() -> PageOps:
    from deeproot.engine.page_ops_triton import TritonPageOps

    return TritonPageOps()


def _flash_lacks(needs: AttentionNeeds) -> str | None:
    if needs.device.type != "cuda":
        return "it needs a CUDA GPU"
    if needs.deterministic:
        return "how it divides the work depends on the batch, so that --deterministic cannot use it"
    if not any(map(importlib.util.find_spec, ("flash_attn_interface", "flash_attn"))):
        return "flash-attn is not installed (pip install flash-attn --no-build-isolation)"
    if needs.dtype == torch.float32:
        return "it computes in bfloat16 and float16 only: use --dtype bfloat16"
    if needs.layout is not None and needs.layout.dtype == FP8:
        return "it is not set up for e4m3 K and V: use --kv-cache-dtype auto"
    return None


def _flash_stands_back(needs: AttentionNeeds) -> str:
    return "it is there for comparison"


def _make_flash(setup: AttentionSetup) -> AttentionBackend:
    if importlib.util.find_spec("flash_attn_interface") is not None:
        function, paged = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache, True
    else:
        function, paged = importlib.import_module("flash_attn").flash_attn_varlen_func, False
    return FlashAttention(setup.pool, function, paged, setup.scale, setup.cap, setup.windows)


_BACKENDS = (
    _Backend(
        "triton",
        "the project's own kernels, made for this GPU",
        _triton_lacks,
        _triton_stands_back,
        _make_triton,
        _triton_page_ops,
    ),
    _Backend(
        "cpu",
        "C++ compiled for this CPU, which reads pages in place",
        _cpu_lacks,
        _cpu_stands_back,
        _make_cpu,
        TorchPageOps,
    ),
    _Backend("torch", "it runs wherever torch does", _nothing, _nothing, _make_torch, TorchPageOps),
    _Backend("flash", "", _flash_lacks, _flash_stands_back, _make_flash, TorchPageOps),
)
