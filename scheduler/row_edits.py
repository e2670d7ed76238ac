"""What one request's penalties, biases and least length do to its logits, kept up to date token by token."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import Int32Array, Int64Array, LogitEdits
from deeproot.scheduler.messages import SamplingParams


def needs_last_token(sampling: SamplingParams) -> bool:
    """Whether a token's logits are edited by what the tokens before it were."""
    return bool(_counts_tokens(sampling) or (sampling.min_tokens and sampling.stop_token_ids))


def has_edits(sampling: SamplingParams) -> bool:
    """Whether a request's logits are edited at all."""
    return bool(sampling.logit_bias) or needs_last_token(sampling)


def _counts_tokens(sampling: SamplingParams) -> bool:
    return bool(sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty)


class RowEdits:
    """One entry for each token that may be edited: `[n]` arrays that grow, and where each token stands in them.

    Frequency and presence count the output; the penalty of repetitions sees prompt and output.
    """

    def __init__(self, sampling: SamplingParams, ids: Int32Array, num_prompt: int) -> None:
        """ids: the prompt and, after a preemption, the output so far."""
        self._sampling = sampling
        self._num_output = 0
        self._entry_of: dict[int, int] = {}
        self._token_ids: Int64Array = np.zeros(64, dtype=np.int64)
        self._bias: NDArray[np.float32] = np.zeros(64, dtype=np.float32)
        self._ends: NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        self._seen: NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        self._counts: NDArray[np.float32] = np.zeros(64, dtype=np.float32)
        for token_id, bias in sampling.logit_bias.items():
            entry = self._entry(token_id)  # may replace the arrays
            self._bias[entry] = bias
        for token_id in sampling.stop_token_ids if sampling.min_tokens else ():
            entry = self._entry(token_id)
            self._ends[entry] = True
        if sampling.repetition_penalty != 1:
            for token_id in np.unique(ids[:num_prompt]).tolist():
                entry = self._entry(token_id)
                self._seen[entry] = True
        for token_id in ids[num_prompt:].tolist():
            self.push(token_id)

    def push(self, token_id: int) -> bool:
        """Count an output token; whether the request had not seen it before."""
        self._num_output += 1
        if not _counts_tokens(self._sampling):
            return False
        entry = self._entry(token_id)
        is_new = not self._seen[entry]
        self._seen[entry] = True
        self._counts[entry] += 1
        return is_new

    def at_each(self, draft: Sequence[int]) -> list[LogitEdits]:
        """The edits of the next token and, if it is `draft[0]`, of the one after it, and so on; `rows` are 0."""
        snapshots, were_new = [self._snapshot()], []
        for token_id in draft:
            were_new.append(self.push(token_id))
            snapshots.append(self._snapshot())
        for token_id, was_new in zip(reversed(draft), reversed(were_new), strict=True):
            self._take_back(token_id, was_new)
        return snapshots

    def _take_back(self, token_id: int, was_new: bool) -> None:
        self._num_output -= 1
        if not _counts_tokens(self._sampling):
            return
        entry = self._entry(token_id)
        self._counts[entry] -= 1
        if was_new:
            self._seen[entry] = False

    def _snapshot(self) -> LogitEdits:
        sampling, n = self._sampling, len(self._entry_of)
        bias, counts = self._bias[:n], self._counts[:n]
        if self._num_output < sampling.min_tokens:
            bias = np.where(self._ends[:n], np.float32(-np.inf), bias)
        penalty = sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
        return LogitEdits(
            rows=np.zeros(n, dtype=np.int64),
            token_ids=self._token_ids[:n],
            bias=bias,
            repetition=np.where(self._seen[:n], sampling.repetition_penalty, 1).astype(np.float32),
            penalty=penalty.astype(np.float32),
        )

    def _entry(self, token_id: int) -> int:
        """Where a token stands, with room made for it if it is new."""
        entry = self._entry_of.get(token_id)
        if entry is None:
            entry = self._entry_of[token_id] = len(self._entry_of)
            if entry == len(self._token_ids):
                self._grow()
            self._token_ids[entry] = token_id
        return entry

    def _grow(self) -> None:
        def doubled(array: np.ndarray) -> np.ndarray:
            return np.concatenate([array, np.zeros_like(array)])

        self._token_ids, self._bias = doubled(self._token_ids), doubled(self._bias)
        self._ends, self._seen, self._counts = map(doubled, (self._ends, self._seen, self._counts))


def joined(parts: Sequence[LogitEdits], rows: Sequence[int]) -> LogitEdits:
    """The edits of several logits rows as one; at least one."""
    sizes = [len(part.token_ids) for part in parts]
    return LogitEdits(
        rows=np.repeat(np.asarray(rows, dtype=np.int64), sizes),
        token_ids=np.concatenate([part.token_ids for part in parts]),
        bias=np.concatenate([part.bias for part in parts]),
        repetition=np.concatenate([part.repetition for part in parts]),
        penalty=np.concatenate([part.penalty for part in parts]),
    )
