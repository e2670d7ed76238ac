"""What a finished step says to those who asked."""

import msgspec
import numpy as np

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array, Logprobs, Sampled
from deeproot.scheduler.messages import TokenLogprobs, TokenOutput
from deeproot.scheduler.table import Appended, RunningTable


def token_outputs(
    table: RunningTable, appended: Appended, batch: ForwardBatch, sampled: Sampled
) -> list[TokenOutput]:
    """One output for each appended token, in order."""
    kept = appended.kept
    token_ids = sampled.token_ids if kept is None else sampled.token_ids[kept]
    rids = [table.request(row).rid for row in appended.rows.tolist()]
    outputs = [TokenOutput(rid, token_id) for rid, token_id in zip(rids, token_ids.tolist(), strict=True)]
    if sampled.logprobs is not None and batch.sampling.num_logprobs is not None:
        reported = np.flatnonzero(batch.sampling.num_logprobs >= 0)
        entries = np.arange(len(reported)) if kept is None else np.flatnonzero(kept[reported])
        _add_logprobs(table, appended.rows, sampled.logprobs, entries, outputs)
    return outputs


def prompt_outputs(
    table: RunningTable, rows: Int64Array, extend: Int64Array, batch: ForwardBatch, sampled: Sampled
) -> list[TokenOutput]:
    """The logarithms of prompts' tokens, one output for each of `rows` that has any, and booked as reported."""
    if batch.prompt_logprobs is None or sampled.prompt_logprobs is None:
        return []
    found = sampled.prompt_logprobs
    place_of = np.repeat(np.arange(len(rows)), extend)[batch.prompt_logprobs.indices]
    outputs = []
    for place in np.unique(place_of).tolist():
        request = table.request(int(rows[place]))
        entries = np.flatnonzero(place_of == place).tolist()
        num_top = request.sampling.prompt_logprobs or 0
        request.num_scored += len(entries)
        scored = tuple(_entry(found, i, num_top) for i in entries)
        outputs.append(TokenOutput(request.rid, None, prompt_logprobs=scored))
    return outputs


def _add_logprobs(
    table: RunningTable, rows: Int64Array, found: Logprobs, entries: Int64Array, outputs: list[TokenOutput]
) -> None:
    """Give those of `outputs`, one for each of `rows`, that asked the next of `entries` of `found`."""
    num_top: Int32Array = table.num_logprobs[rows]
    asked = np.flatnonzero(num_top >= 0)
    for place, entry in zip(asked.tolist(), entries.tolist(), strict=True):
        logprobs = _entry(found, entry, int(num_top[place]))
        outputs[place] = msgspec.structs.replace(outputs[place], logprobs=logprobs)


def _entry(found: Logprobs, i: int, num_top: int) -> TokenLogprobs:
    top = zip(found.top_ids[i, :num_top].tolist(), found.top[i, :num_top].tolist(), strict=True)
    return TokenLogprobs(int(found.token_ids[i]), float(found.chosen[i]), tuple(top))
