"""What the attention launches ask of their tensors, told by name before a kernel reads wrong memory."""

from dataclasses import dataclass

import torch

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes that a packed q and a pair of pools agree on."""

    kv_heads: int
    group: int
    head_dim: int
    page_size: int
    tokens: int
    fp8: bool


def attention_shape(q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor) -> AttentionShape:
    """Read the sizes of q `[kv_heads, tokens, group, head_dim]` and pools `[pages, kv_heads, page, head_dim]`.

    q may be a slice along tokens. Raises ValueError that names the tensor.
    """
    if (
        q.dim() != 4
        or q.stride(3) != 1
        or q.stride(2) != q.shape[3]
        or q.stride(1) != q.shape[2] * q.shape[3]
    ):
        raise ValueError(
            "q must be packed as [kv_heads, tokens, group, head_dim] with each head's rows in one piece, got shape "
            f"{tuple(q.shape)} and strides {q.stride()}: use pack_q"
        )
    if k_pool.dim() != 4 or not k_pool.is_contiguous():
        raise ValueError(
            f"k_pool must be a contiguous [pages, kv_heads, page, head_dim], got {tuple(k_pool.shape)}"
        )
    if v_pool.shape != k_pool.shape or v_pool.dtype != k_pool.dtype or not v_pool.is_contiguous():
        raise ValueError(
            f"v_pool must be like k_pool, got {tuple(v_pool.shape)} {v_pool.dtype} for {k_pool.dtype}"
        )
    kv_heads, tokens, group, head_dim = q.shape
    if k_pool.shape[1] != kv_heads or k_pool.shape[3] != head_dim:
        raise ValueError(
            f"q {tuple(q.shape)} and k_pool {tuple(k_pool.shape)} differ in KV heads or head_dim"
        )
    fp8 = k_pool.dtype == FP8
    if not fp8 and k_pool.dtype != q.dtype:
        raise ValueError(f"k_pool must have q's dtype {q.dtype} or {FP8}, got {k_pool.dtype}")
    return AttentionShape(kv_heads, group, head_dim, k_pool.shape[2], tokens, fp8)


def head_scale(
    name: str, scale: torch.Tensor | None, shape: AttentionShape, like: torch.Tensor
) -> torch.Tensor:
    """A scale a KV head for fp8 pools; for others a tensor that the kernel does not read.

    Raises ValueError if fp8 pools come without one.
    """
    if not shape.fp8:
        return like
    if scale is None or scale.shape != (shape.kv_heads,) or scale.dtype != torch.float32:
        raise ValueError(f"{name} must be a float32 tensor of {shape.kv_heads} for fp8 pools, got {scale!r}")
    return scale


def int32(name: str, tensor: torch.Tensor, *, dim: int, columns: int | None = None) -> None:
    """Raise ValueError unless `tensor` is a contiguous int32 tensor of `dim` dimensions."""
    wrong_columns = columns is not None and tensor.shape[-1] != columns
    if tensor.dtype != torch.int32 or tensor.dim() != dim or wrong_columns or not tensor.is_contiguous():
        wanted = f"{dim}-d" + (f" with {columns} columns" if columns else "")
        raise ValueError(
            f"{name} must be a contiguous int32 tensor, {wanted}, got {tensor.dtype} {tuple(tensor.shape)}"
        )


def partials(name: str, out: torch.Tensor, lse: torch.Tensor, shape: AttentionShape) -> int:
    """Levels of an output `[tokens, heads, head_dim]` or `[levels, tokens, heads, head_dim]` with its LSE beside it.

    Raises ValueError if the two do not fit together.
    """
    heads = shape.kv_heads * shape.group
    tail = (heads, shape.head_dim)
    if out.dim() not in (3, 4) or out.shape[-2:] != tail or not out.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous [(levels,) tokens, {heads}, {shape.head_dim}], got {tuple(out.shape)}"
        )
    if lse.shape != out.shape[:-1] or lse.dtype != torch.float32 or not lse.is_contiguous():
        raise ValueError(
            f"lse must be contiguous float32 {tuple(out.shape[:-1])}, got {lse.dtype} {tuple(lse.shape)}"
        )
    return 1 if out.dim() == 3 else out.shape[0]
