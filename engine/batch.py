"""What the scheduler hands to the runner for one step: host arrays, one entry a token or a sequence.

Sequences of a batch are ragged: sequence `i` computes tokens `cu_seqlens_q[i]:cu_seqlens_q[i + 1]` of the
flat token arrays. There is no phase flag: a decoding sequence is one that computes a single token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Changes to single logits before sampling, `E` in all; each pair of row and token stands here once at most.

    A logit `x` becomes `x + bias`, then that over `repetition` if it is positive and times `repetition` if it is
    negative, less `penalty`.
    """

    rows: Int64Array
    """`[E]` of the `N` rows."""
    token_ids: Int64Array
    """`[E]`"""
    bias: NDArray[np.float32]
    """`[E]` negative infinity forbids the token."""
    repetition: NDArray[np.float32]
    """`[E]` above 0; 1 where off."""
    penalty: NDArray[np.float32]
    """`[E]`"""


@dataclass(frozen=True, slots=True)
class TokenMask:
    """The only tokens that some rows may get, applied after `LogitEdits`. Rows that are not listed may get any."""

    rows: Int64Array
    """`[M]` of the `N` rows, each once."""
    words: Int32Array
    """`[M, ceil(vocab_size / 32)]`: token `t` is allowed where bit `t % 32` of word `t // 32` is set."""

    def result(self) -> "TokenMask":
        """Itself: see `PendingMask`."""
        return self


class PendingMask(Protocol):
    """A mask that may still be worked out while the model computes."""

    def result(self) -> TokenMask:
        """Wait for it."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling settings of the logits rows from which this step takes a token; all arrays are `[num_logits]`."""

    temperature: NDArray[np.float32]
    """0 means greedy."""
    top_k: Int32Array
    """0 means off."""
    top_p: NDArray[np.float32]
    """1 means off."""
    min_p: NDArray[np.float32]
    """0 means off."""
    seeds: NDArray[np.uint64]
    positions: Int64Array
    """Index in its sequence of the token that is to be sampled: with the seed, the whole state of the generator."""
    edits: LogitEdits | None = None
    mask: PendingMask | None = None
    num_logprobs: Int32Array | None = None
    """How many of the likeliest tokens are reported beside the one that is sampled; -1: not even that one."""


@dataclass(frozen=True, slots=True)
class PromptLogprobsBatch:
    """Of which new tokens the logits tell how likely a token of the prompt was, `M` in all."""

    indices: Int64Array
    """`[M]` indices into the `T` new tokens."""
    token_ids: Int64Array
    """`[M]` the prompt's token that follows each."""
    num_logprobs: int
    """How many of the likeliest tokens are reported, for every one of the `M`."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of probabilities by the model's own logits, before edits, masks and temperature."""

    token_ids: Int64Array
    """`[M]`"""
    chosen: NDArray[np.float32]
    """`[M]` of `token_ids`."""
    top_ids: Int64Array
    """`[M, K]` the likeliest tokens, likeliest first; `K` is the most that any row asked for."""
    top: NDArray[np.float32]
    """`[M, K]`"""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step's forward pass gives back."""

    token_ids: Int32Array
    """`[N]`"""
    sound: NDArray[np.bool_] | None = None
    """`[N]` whether the logits were numbers; a token of others means nothing. None: all were."""
    sound_chunks: NDArray[np.bool_] | None = None
    """The same of the hidden states that end the sequences without logits, in order. None: all were."""
    logprobs: Logprobs | None = None
    """Of the rows whose `num_logprobs` is not -1, in order."""
    prompt_logprobs: Logprobs | None = None
    """Of the batch's `prompt_logprobs`."""


@dataclass(frozen=True, slots=True)
class FedTokens:
    """New tokens of a batch that the batch launched before it samples, so that only the device knows them."""

    tokens: Int64Array
    """`[M]` indices into the `T` new tokens, whose `input_ids` hold a 0 in their place."""
    sampled: Int64Array
    """`[M]` indices into the `N` tokens that the batch before samples."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The new tokens of every sequence of a step and where their K and V live.

    Shapes: `T` new tokens, `B` sequences, `P` pages of the longest sequence, `N` logits rows that are sampled.
    """

    input_ids: Int32Array
    """`[T]`"""
    positions: Int64Array
    """`[T]` position of each new token in its sequence, from 0."""
    slot_mapping: Int64Array
    """`[T]` slot (`page * page_size + offset`) into which each new token's K and V are written."""
    page_table: Int32Array
    """`[B, P]` pages of each sequence in order; entries past a sequence's last page are unspecified but valid."""
    cu_seqlens_q: Int32Array
    """`[B + 1]` running sum of the numbers of new tokens."""
    seq_lens: Int32Array
    """`[B]` tokens of each sequence that have K and V after this step (cached and new)."""
    logits_indices: Int64Array
    """`[N]` indices into the `T` new tokens whose logits are sampled; a sequence has several while it is verifying a draft."""
    sampling: SamplingBatch
    prompt_logprobs: PromptLogprobsBatch | None = None
    fed: FedTokens | None = None
    """None if the host knows all new tokens."""


def pad_decodes(batch: ForwardBatch, size: int, page: int, page_size: int) -> ForwardBatch:
    """A batch of decodes with sequences of a single token added until there are `size`, for a captured graph.

    Each of these is token 0 at position 0 of `page`, the pool's padding page; all write the same K and V there.
    `logits_indices` and `sampling` stay those of the real sequences. Raises ValueError if the batch is larger, or if
    a sequence of it computes more than one token.
    """
    num_seqs = len(batch.seq_lens)
    if len(batch.input_ids) != num_seqs:
        raise ValueError(
            f"{len(batch.input_ids)} new tokens of {num_seqs} sequences: only decodes can be padded"
        )
    if num_seqs > size:
        raise ValueError(f"{num_seqs} sequences do not fit into a batch of {size}")
    extra = size - num_seqs
    if not extra:
        return batch

    def padded(values: np.ndarray, fill: int) -> np.ndarray:
        return np.concatenate((values, np.full((extra, *values.shape[1:]), fill, values.dtype)))

    return replace(
        batch,
        input_ids=padded(batch.input_ids, 0),
        positions=padded(batch.positions, 0),
        slot_mapping=padded(batch.slot_mapping, page * page_size),
        page_table=padded(batch.page_table, page),
        cu_seqlens_q=np.arange(size + 1, dtype=np.int32),
        seq_lens=padded(batch.seq_lens, 1),
    )


def one_sequence(token_ids: Int32Array, num_cached: int, pages: Int32Array, page_size: int) -> ForwardBatch:
    """A batch of one sequence that computes all but its first `num_cached` tokens, with greedy logits of each."""
    return several_sequences([(token_ids, num_cached, pages)], page_size)


def several_sequences(
    sequences: Sequence[tuple[Int32Array, int, Int32Array]], page_size: int, *, last_only: bool = False
) -> ForwardBatch:
    """As `one_sequence`, of several: token ids, number of them that are cached, and pages of each. `last_only`: with
    logits at each one's last token alone."""
    positions = [np.arange(cached, len(ids), dtype=np.int64) for ids, cached, _ in sequences]
    slots = [
        pages[at // page_size].astype(np.int64) * page_size + at % page_size
        for at, (_, _, pages) in zip(positions, sequences, strict=True)
    ]
    width = max(-(-len(ids) // page_size) for ids, _, _ in sequences)
    starts = np.cumsum([0, *map(len, positions)])
    at = np.concatenate(positions)
    logits = starts[1:] - 1 if last_only else np.arange(len(at), dtype=np.int64)
    sampled = len(logits)
    return ForwardBatch(
        input_ids=np.concatenate([ids[cached:] for ids, cached, _ in sequences]),
        positions=at,
        slot_mapping=np.concatenate(slots),
        page_table=np.stack([np.resize(pages, width) for _, _, pages in sequences]),
        cu_seqlens_q=starts.astype(np.int32),
        seq_lens=np.array([len(ids) for ids, _, _ in sequences], dtype=np.int32),
        logits_indices=logits,
        sampling=SamplingBatch(
            temperature=np.zeros(sampled, np.float32),
            top_k=np.zeros(sampled, np.int32),
            top_p=np.ones(sampled, np.float32),
            min_p=np.zeros(sampled, np.float32),
            seeds=np.zeros(sampled, np.uint64),
            positions=at[logits] + 1,
        ),
    )
