"""Copies of the first tokens of pages, zeros behind them: token-exact reuse, zeroing on allocation, moves between tiers."""

import torch
import triton
import triton.language as tl

from deeproot.kernels.launch import Launch, cdiv


@triton.jit
def copy_pages_kernel(
    source_ptr,
    target_ptr,
    source_pages_ptr,
    target_pages_ptr,
    tokens_ptr,
    source_layer,
    target_layer,
    HEADS: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    TOKEN_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Words are 32 bits: the kernel does not care for the pool's dtype."""
    i = tl.program_id(0)
    piece = tl.program_id(1)
    layer = tl.program_id(2).to(tl.int64)
    source = tl.load(source_pages_ptr + i).to(tl.int64)
    target = tl.load(target_pages_ptr + i).to(tl.int64)
    kept = tl.load(tokens_ptr + i) * TOKEN_WORDS
    word = piece * BLOCK + tl.arange(0, BLOCK)
    mask = word < HEADS * HEAD_WORDS
    copied = mask & (word % HEAD_WORDS < kept)
    values = tl.load(
        source_ptr + layer * source_layer + source * (HEADS * HEAD_WORDS) + word, mask=copied, other=0
    )
    tl.store(target_ptr + layer * target_layer + target * (HEADS * HEAD_WORDS) + word, values, mask=mask)


def copy_pages_launch(
    source: torch.Tensor,
    target: torch.Tensor,
    source_pages: torch.Tensor,
    target_pages: torch.Tensor,
    tokens: torch.Tensor,
) -> Launch:
    """The launch that makes page `target_pages[i]` of target the first `tokens[i]` tokens of a source page, then zeros.

    Pools `[layers, pages, kv_heads, page, head_dim]`, alike but for the number of pages, and may be one and the same;
    int32 page lists and token counts `[n]`. A count of 0 zeroes the page (source_pages[i] is not read, but must be a
    number of a page). No target page may be one of the source pages or occur twice. Raises ValueError for tensors
    that do not fit.
    """
    for name, pool in (("source", source), ("target", target)):
        if pool.dim() != 5 or not pool.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous [layers, pages, kv_heads, page, head_dim], got {tuple(pool.shape)}"
            )
    layers, _, heads, page, dim = source.shape
    if target.shape[0] != layers or target.shape[2:] != source.shape[2:] or target.dtype != source.dtype:
        raise ValueError(
            f"source {tuple(source.shape)} and target {tuple(target.shape)} differ in more than pages"
        )
    for name, pages in (("source_pages", source_pages), ("target_pages", target_pages), ("tokens", tokens)):
        if pages.dtype != torch.int32 or pages.shape != source_pages.shape or not pages.is_contiguous():
            raise ValueError(
                f"{name} must be a contiguous int32 list as long as source_pages, got {pages.dtype} {tuple(pages.shape)}"
            )
    words, rest = divmod(dim * source.element_size(), 4)
    if rest:
        raise ValueError(f"head_dim {dim} of {source.dtype} is not a whole number of 32-bit words")
    block = 2048
    args = {
        "source_ptr": source.view(torch.int32),
        "target_ptr": target.view(torch.int32),
        "source_pages_ptr": source_pages,
        "target_pages_ptr": target_pages,
        "tokens_ptr": tokens,
        "source_layer": source.stride(0) * source.element_size() // 4,
        "target_layer": target.stride(0) * target.element_size() // 4,
        "HEADS": heads,
        "HEAD_WORDS": page * words,
        "TOKEN_WORDS": words,
        "BLOCK": block,
    }
    grid = (source_pages.shape[0], cdiv(heads * page * words, block), layers)
    return Launch(copy_pages_kernel, grid, args, num_warps=4)


def copy_pages(
    source: torch.Tensor,
    target: torch.Tensor,
    source_pages: torch.Tensor,
    target_pages: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """Run what `copy_pages_launch` makes of the same arguments."""
    copy_pages_launch(source, target, source_pages, target_pages, tokens).run()


def zero_pages(pool: torch.Tensor, pages: torch.Tensor) -> None:
    """Zero whole pages of a pool; pages int32 `[n]`."""
    copy_pages(pool, pool, pages, pages, torch.zeros_like(pages))
