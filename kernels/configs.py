"""Tile shapes of the attention kernels: one table by head dim, page size, cache type and Triton version.

The numbers come from the machine code (bench/results/static_kernels.md): no spills, and the longest stretch of matrix
work a warp instruction. Triton is not needed to read this table.
"""

from dataclasses import dataclass
from typing import Literal

Form = Literal["gather", "descriptor", "specialised"]
"""How K and V come: token by token through pointers, a page's rows by TMA, or by TMA from a warp group of its own."""

Version = tuple[int, int]
"""Triton's major and minor version."""

SHARED_LIMIT = 232_448
"""Bytes of shared memory that a program of sm_90 may have; the compiler does not refuse more, the launch does."""

HEAD_DIMS = (64, 96, 128, 256)
PAGE_SIZES = (16, 32, 64, 128)
MAX_GROUP = 16


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """`block_m` packed query rows by `block_n` tokens; `per_sm` programs share a multiprocessor."""

    form: Form
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    per_sm: int = 1


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """`block_n` tokens by `block_h` query heads of one group (the narrow side of the swapped products)."""

    form: Form
    block_n: int
    block_h: int
    num_warps: int
    num_stages: int


def padded_dim(head_dim: int) -> int:
    """The columns of a tile: `head_dim` up to a power of two.

    Raises ValueError for a head dim that has no configuration.
    """
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim {head_dim} has no kernel configuration: use one of {HEAD_DIMS}")
    return 1 << (head_dim - 1).bit_length()


def _page_class(page_size: int) -> int:
    if page_size not in PAGE_SIZES:
        raise ValueError(f"page_size {page_size} has no kernel configuration: use one of {PAGE_SIZES}")
    return 16 if page_size < 64 else page_size


# (padded head dim, page class: 16 stands for 16 and 32): configuration
_PREFILL: dict[tuple[int, int], PrefillConfig] = {
    (64, 16): PrefillConfig("gather", 128, 128, 8, 3),
    (64, 64): PrefillConfig("descriptor", 128, 64, 4, 2, per_sm=2),
    (64, 128): PrefillConfig("descriptor", 128, 128, 8, 2),
    (128, 16): PrefillConfig("gather", 128, 64, 8, 3),
    (128, 64): PrefillConfig("descriptor", 128, 64, 8, 2),
    (128, 128): PrefillConfig("descriptor", 128, 128, 8, 2),
    (256, 16): PrefillConfig("gather", 128, 32, 8, 2),
    (256, 64): PrefillConfig("descriptor", 128, 64, 8, 2),
    (256, 128): PrefillConfig("descriptor", 128, 64, 8, 2),
}
_PREFILL_FP8: dict[tuple[int, int], PrefillConfig] = {
    (256, 64): PrefillConfig("descriptor", 128, 32, 8, 2),
    (256, 128): PrefillConfig("descriptor", 128, 32, 8, 2),
}
# Triton before 3.9 keeps more values in registers: smaller tiles where it spills
_PREFILL_OLD: dict[tuple[int, int], PrefillConfig] = {
    (128, 128): PrefillConfig("descriptor", 128, 64, 8, 2),
    (256, 64): PrefillConfig("descriptor", 128, 32, 8, 2),
    (256, 128): PrefillConfig("descriptor", 128, 32, 8, 2),
}
_SPECIALISED: dict[tuple[int, int], PrefillConfig] = {
    (64, 64): PrefillConfig("specialised", 128, 64, 4, 3),
    (64, 128): PrefillConfig("specialised", 128, 128, 4, 3),
    (128, 64): PrefillConfig("specialised", 128, 64, 4, 3),
    (128, 128): PrefillConfig("specialised", 128, 128, 4, 2),
    (256, 64): PrefillConfig("specialised", 128, 64, 4, 2),
    (256, 128): PrefillConfig("specialised", 128, 64, 4, 2),
}
_DECODE: dict[tuple[int, int], tuple[Form, int, int]] = {
    (64, 16): ("gather", 128, 3),
    (64, 64): ("descriptor", 64, 3),
    (64, 128): ("descriptor", 128, 3),
    (128, 16): ("gather", 64, 3),
    (128, 64): ("descriptor", 64, 3),
    (128, 128): ("descriptor", 128, 2),
    (256, 16): ("gather", 64, 2),
    (256, 64): ("descriptor", 64, 2),
    (256, 128): ("descriptor", 64, 2),
}
_DECODE_OLD: dict[tuple[int, int], tuple[Form, int, int]] = {(64, 64): ("gather", 128, 3)}


def prefill_config(head_dim: int, page_size: int, fp8: bool, version: Version) -> PrefillConfig:
    """The plain form's tile: any page size, bf16, fp16 or fp8 pools."""
    key = (padded_dim(head_dim), _page_class(page_size))
    config = _PREFILL[key]
    if fp8:
        config = _PREFILL_FP8.get(key, config)
    if version < (3, 9):
        config = _PREFILL_OLD.get(key, config)
    return config


def specialised_config(head_dim: int, page_size: int) -> PrefillConfig | None:
    """The warp-specialised form's tile, None where that form does not pay (pages under 64 tokens)."""
    return _SPECIALISED.get((padded_dim(head_dim), _page_class(page_size)))


def decode_config(head_dim: int, page_size: int, group: int, version: Version) -> DecodeConfig:
    """The decode kernel's tile for `group` query heads a KV head (1 to 16).

    Triton before 3.9 has no warpgroup instruction of 8 columns, so there the narrow side is 16.
    """
    if not 1 <= group <= MAX_GROUP:
        raise ValueError(f"a group of {group} query heads a KV head is not supported: 1 to {MAX_GROUP} are")
    key = (padded_dim(head_dim), _page_class(page_size))
    old = version < (3, 9)
    form, block_n, stages = _DECODE_OLD.get(key, _DECODE[key]) if old else _DECODE[key]
    block_h = 16 if group > 8 or old else 8
    return DecodeConfig(form, block_n, block_h, 4, stages)
