"""A step's work for the attention kernels as arrays: which rows meet which pages, and where the results go.

Only numpy: what the kernels want of these arrays is said in `kernels.paged_prefill` and `kernels.paged_decode`. Sequences
that compute one token are decodes, the others extends; decodes stand first, and sequences that share pages side by side.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array
from deeproot.engine.shared_prefix import (
    EXTRA_LAUNCHES_S,
    AttentionSizes,
    SharedPrefix,
    find_shared,
    saved_seconds,
)
from deeproot.kernels.devices import Device

Cascade = Literal["auto", "always", "never"]
"""Whether pages that sequences share are read once for all: if the cost model says that it pays, or regardless."""

MAX_PIECES = 16
"""Into how many a KV range is cut at most."""

_Range = tuple[int, int, int, int, int, int, int]
"""seq, row, rows, context, kv_begin, kv_end, level: as in an item, but of any number of rows."""


@dataclass(frozen=True, slots=True)
class ListSettings:
    """What the lists depend on, besides the batch."""

    sizes: AttentionSizes
    page_size: int
    block_m: int
    """Rows of a prefill item."""
    align: int
    """Where a KV range may begin: a multiple of the page and of both kernels' tiles."""
    programs: int
    """Programs of the prefill kernel that run at a time."""
    min_piece: int
    """Tokens that a piece of a KV range has at least."""
    cascade: Cascade
    device: Device
    """What the cost model is asked about."""
    one_kernel: bool = False
    """Sequences that compute one token are extends too."""

    @property
    def group(self) -> int:
        return self.sizes.num_qo_heads // self.sizes.num_kv_heads


@dataclass(frozen=True, slots=True)
class DecodeLists:
    """Of the sequences that compute one token, numbered in the step's order."""

    whole: Int32Array
    """`[D, 4]` items of the decode kernel, each for all that a sequence sees."""
    behind: Int32Array | None
    """`[D, 4]` the same without what `prefixes` covers; None if there are none."""
    prefixes: Int32Array
    """`[n, 8]` items of the prefill kernel for shared pages."""
    levels: int
    """States that `prefixes` writes for a row at most, a power of two; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class ExtendLists:
    """Of the sequences that compute several tokens; rows are counted from the first of these tokens."""

    whole: Int32Array
    """`[n, 8]` items of the prefill kernel, one for a row, each for all that its rows see."""
    parts: Int32Array | None
    """`[n, 8]` the same work with shared pages read once and long ranges in pieces; None if that is `whole`."""
    levels: int
    """States that `parts` writes for a row at most; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class StepLists:
    order: Int32Array | None
    """`[T]` for each place of the step's order the token of the batch; None: the batch's own order."""
    num_decodes: int
    decodes: DecodeLists | None
    extends: ExtendLists | None


def make_lists(batch: ForwardBatch, settings: ListSettings) -> StepLists:
    """The lists of a step."""
    q_lens = np.diff(batch.cu_seqlens_q).astype(np.int64)
    least = 1 if settings.one_kernel else 2
    decodes, extends = np.flatnonzero(q_lens < least), np.flatnonzero(q_lens >= least)
    decode_groups = _worthwhile(batch, q_lens, decodes, settings)
    extend_groups = _worthwhile(batch, q_lens, extends, settings)
    decodes, extends = _side_by_side(decodes, decode_groups), _side_by_side(extends, extend_groups)
    order = _token_order(batch.cu_seqlens_q, q_lens, np.concatenate((decodes, extends)))
    # A decode step that shares always reorders, so that graphs need not tell the two apart.
    keep = not decode_groups and np.array_equal(order, np.arange(len(order)))
    return StepLists(
        None if keep else order.astype(np.int32),
        len(decodes),
        _decode_lists(batch, decodes, decode_groups, settings) if len(decodes) else None,
        _extend_lists(batch, q_lens, extends, extend_groups, settings) if len(extends) else None,
    )


def tiles(ranges: list[_Range], group: int, block_m: int) -> Int32Array:
    """Prefill items `[n, 8]` of ranges of rows, longest first."""
    seq, row, rows, context, begin, end, level = np.array(ranges, dtype=np.int64).reshape(-1, 7).T
    counts = -(-rows // block_m)
    which = np.repeat(np.arange(len(rows)), counts)
    offset = (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)) * block_m
    size = np.minimum(rows[which] - offset, block_m)
    items = (
        seq[which],
        row[which] + offset,
        size,
        offset,
        context[which],
        begin[which],
        end[which],
        level[which],
    )
    last = context[which] + (offset + size - 1) // group
    work = np.minimum(end[which], last + 1) - begin[which]
    return np.stack(items, 1)[np.argsort(-work, kind="stable")].astype(np.int32)


def cut(begin: int, end: int, pieces: int, settings: ListSettings) -> list[tuple[int, int]]:
    """A KV range in at most that many pieces of similar length, none shorter than `min_piece` but the last."""
    align = settings.align
    length = max(-(-(end - begin) // pieces), settings.min_piece)
    length = -(-length // align) * align
    return [(start, min(start + length, end)) for start in range(begin, end, length)]


def _worthwhile(
    batch: ForwardBatch, q_lens: Int64Array, seqs: Int64Array, settings: ListSettings
) -> list[SharedPrefix]:
    """The groups among `seqs` whose shared pages are to be read once, cut to where a range may begin."""
    if settings.cascade == "never" or len(seqs) < 2:
        return []
    cached = batch.seq_lens[seqs].astype(np.int64) - q_lens[seqs]
    step = settings.align // settings.page_size
    # Only whole pages of what was there before: nothing in them is masked.
    whole = cached // settings.align * step
    groups = [
        SharedPrefix(found.members, found.num_pages // step * step)
        for found in find_shared(batch.page_table, seqs, whole)
    ]
    groups = [group for group in groups if group.num_pages]
    if settings.cascade == "always":
        return groups
    saved = [_saved(batch, q_lens, group, settings) for group in groups]
    if sum(max(seconds, 0.0) for seconds in saved) <= EXTRA_LAUNCHES_S:
        return []
    return [group for group, seconds in zip(groups, saved, strict=True) if seconds > 0]


def _saved(batch: ForwardBatch, q_lens: Int64Array, group: SharedPrefix, settings: ListSettings) -> float:
    new = q_lens[group.members]
    cached = batch.seq_lens[group.members] - new
    sequences = list(zip(new.tolist(), cached.tolist(), strict=True))
    return saved_seconds(group.num_pages * settings.page_size, sequences, settings.sizes, settings.device)


def _side_by_side(seqs: Int64Array, groups: list[SharedPrefix]) -> Int64Array:
    """The same sequences, groups first."""
    if not groups:
        return seqs
    grouped = np.concatenate([group.members for group in groups])
    return np.concatenate((grouped, np.setdiff1d(seqs, grouped)))


def _token_order(cu_seqlens: Int32Array, q_lens: Int64Array, seqs: Int64Array) -> Int64Array:
    """The tokens of the sequences, in their order."""
    lens = q_lens[seqs]
    ends = np.cumsum(lens)
    return np.repeat(cu_seqlens[seqs] - (ends - lens), lens) + np.arange(ends[-1])


def _decode_lists(
    batch: ForwardBatch, seqs: Int64Array, groups: list[SharedPrefix], settings: ListSettings
) -> DecodeLists:
    begin = np.zeros_like(seqs)
    whole = np.stack((seqs, np.arange(len(seqs)), begin, batch.seq_lens[seqs]), 1).astype(np.int32)
    if not groups:
        return DecodeLists(whole, None, np.empty((0, 8), np.int32), 0)
    counts = np.array([len(group.members) for group in groups])
    pieces = _pieces(counts, settings)
    ranges: list[_Range] = []
    first, levels = 0, 0
    for group, count in zip(groups, counts.tolist(), strict=True):
        shared = group.num_pages * settings.page_size
        cuts = cut(0, shared, pieces, settings)
        ranges += _prefix_ranges(group, first, count, cuts, settings)
        begin[first : first + count] = shared
        first, levels = first + count, max(levels, len(cuts))
    behind = whole.copy()
    behind[:, 2] = begin
    # Rounded up, so that few graphs differ; a level that no one writes is not read.
    return DecodeLists(
        whole, behind, tiles(ranges, settings.group, settings.block_m), 1 << (levels - 1).bit_length()
    )


def _prefix_ranges(
    group: SharedPrefix, first: int, count: int, cuts: list[tuple[int, int]], settings: ListSettings
) -> list[_Range]:
    """`count` tokens from `first` on against each piece of what the group shares, of which they see all."""
    seq, shared = int(group.members[0]), group.num_pages * settings.page_size
    row, rows = first * settings.group, count * settings.group
    return [(seq, row, rows, shared, begin, end, level) for level, (begin, end) in enumerate(cuts)]


def _pieces(num_tokens: Int64Array, settings: ListSettings) -> int:
    """Into how many pieces ranges of so many tokens each are cut, so that all programs have work."""
    items = int((-(-num_tokens * settings.group // settings.block_m)).sum())
    wanted = settings.programs // (items * settings.sizes.num_kv_heads)
    return min(max(wanted, 1), MAX_PIECES)


def _extend_lists(
    batch: ForwardBatch,
    q_lens: Int64Array,
    seqs: Int64Array,
    groups: list[SharedPrefix],
    settings: ListSettings,
) -> ExtendLists:
    group, block_m = settings.group, settings.block_m
    lens = q_lens[seqs]
    starts = np.cumsum(lens) - lens
    totals = batch.seq_lens[seqs].astype(np.int64)
    whole = [
        (seq, start * group, n * group, total - n, 0, total, 0)
        for seq, start, n, total in zip(
            seqs.tolist(), starts.tolist(), lens.tolist(), totals.tolist(), strict=True
        )
    ]
    pieces = _pieces(lens, settings)
    parts: list[_Range] = []
    behind = [(0, 0)] * len(seqs)  # of each sequence: tokens that are done with its group, levels they take
    at = 0
    for shared in groups:
        count = len(shared.members)
        num_tokens, num_rows = shared.num_pages * settings.page_size, int(lens[at : at + count].sum())
        cuts = cut(0, num_tokens, pieces, settings)
        parts += _prefix_ranges(shared, int(starts[at]), num_rows, cuts, settings)
        behind[at : at + count] = [(num_tokens, len(cuts))] * count
        at += count
    for (seq, row, rows, context, _, total, _), (begin, level) in zip(whole, behind, strict=True):
        cuts = cut(begin, context, pieces, settings) or [(begin, total)]
        # New tokens go with the last piece of what was there.
        cuts[-1] = (cuts[-1][0], total)
        parts += [(seq, row, rows, context, *piece, level + i) for i, piece in enumerate(cuts)]
    levels = 1 + max(part[6] for part in parts)
    if levels == 1:
        return ExtendLists(tiles(whole, group, block_m), None, 0)
    return ExtendLists(tiles(whole, group, block_m), tiles(parts, group, block_m), levels)
