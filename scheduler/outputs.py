"""What a finished step brought, and what it says to those who asked."""

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import Int32Array, Int64Array, Logprobs, Sampled
from deeproot.scheduler.flight import Appended, Step
from deeproot.scheduler.messages import TokenLogprobs, TokenOutput
from deeproot.scheduler.table import RunningTable


@dataclass(frozen=True, slots=True)
class Landed:
    """A finished step for `B` rows, of which `R` sampled, with `N` rows of logits."""

    rows: Int64Array
    """`[B]`"""
    certain: Int64Array
    """`[B]` tokens computed, without drafts."""
    sampling_rows: Int64Array
    """`[R]`"""
    num_drafted: Int64Array | None
    """`[R]`; None: no drafts at all."""
    token_ids: Int32Array
    """`[N]`"""
    sound: NDArray[np.bool_] | None
    """`[N]` as in `Sampled`."""
    unsound_chunks: Int64Array
    """Rows that have computed a part of their prompt, and no numbers."""
    logprobs: Logprobs | None
    logprobs_at: Int64Array
    """Which of the `N` the entries of `logprobs` are of, -1 where of none that is still here."""
    prompt_logprobs: Logprobs | None
    prompt_rows: Int64Array
    """The row of each entry of `prompt_logprobs`."""

    @classmethod
    def of(cls, step: Step, sampled: Sampled) -> "Landed":
        batch, nothing = step.batch, np.empty(0, dtype=np.int64)
        wanted, of_prompt = batch.sampling.num_logprobs, batch.prompt_logprobs
        return cls(
            rows=step.rows,
            certain=step.certain,
            sampling_rows=step.sampling_rows,
            num_drafted=None if step.num_drafted is None else step.num_logits - 1,
            token_ids=sampled.token_ids,
            sound=sampled.sound,
            unsound_chunks=nothing
            if sampled.sound_chunks is None
            else step.rows[~np.isin(step.rows, step.sampling_rows)][~sampled.sound_chunks],
            logprobs=sampled.logprobs,
            logprobs_at=nothing if wanted is None else np.flatnonzero(wanted >= 0),
            prompt_logprobs=sampled.prompt_logprobs,
            prompt_rows=nothing
            if of_prompt is None
            else np.repeat(step.rows, step.extend)[of_prompt.indices],
        )

    @property
    def num_computed(self) -> int:
        drafts = 0 if self.num_drafted is None else int(self.num_drafted.sum())
        return int(self.certain.sum()) + drafts

    def unsound(self) -> list[int]:
        """Which of `sampling_rows`, by index, have logits that are no numbers."""
        if self.sound is None or self.sound.all() or not len(self.sampling_rows):
            return []
        sizes = 1 if self.num_drafted is None else self.num_drafted + 1
        owners = np.repeat(np.arange(len(self.sampling_rows)), sizes)
        found: list[int] = np.unique(owners[~self.sound]).tolist()
        return found

    def without(self, rows: list[int]) -> "Landed":
        """The same for the other rows."""
        here, samples = ~np.isin(self.rows, rows), ~np.isin(self.sampling_rows, rows)
        sizes = 1 if self.num_drafted is None else self.num_drafted + 1
        kept: NDArray[np.bool_] = np.repeat(samples, sizes)
        new_place = np.where(kept, kept.cumsum() - 1, -1)
        return replace(
            self,
            rows=self.rows[here],
            certain=self.certain[here],
            sampling_rows=self.sampling_rows[samples],
            num_drafted=None if self.num_drafted is None else self.num_drafted[samples],
            token_ids=self.token_ids[kept],
            sound=None if self.sound is None else self.sound[kept],
            unsound_chunks=self.unsound_chunks[~np.isin(self.unsound_chunks, rows)],
            logprobs_at=new_place[self.logprobs_at],
            prompt_rows=np.where(np.isin(self.prompt_rows, rows), -1, self.prompt_rows),
        )


def token_outputs(table: RunningTable, appended: Appended, landed: Landed) -> list[TokenOutput]:
    """One output for each appended token, in order."""
    kept = appended.kept
    if kept is None:
        token_ids, rids = landed.token_ids, table.sampling.settings_of(appended.rows).rids
    else:
        token_ids = landed.token_ids[kept]
        rids = [table.request(row).rid for row in appended.rows.tolist()]
    outputs = [TokenOutput(rid, token_id) for rid, token_id in zip(rids, token_ids.tolist(), strict=True)]
    if landed.logprobs is not None:
        places = np.arange(len(landed.token_ids)) if kept is None else np.where(kept, kept.cumsum() - 1, -1)
        for entry, at in enumerate(landed.logprobs_at.tolist()):
            place = -1 if at < 0 else int(places[at])
            if place >= 0:
                num_top = int(table.sampling.num_logprobs[appended.rows[place]])
                logprobs = _entry(landed.logprobs, entry, num_top)
                outputs[place] = msgspec.structs.replace(outputs[place], logprobs=logprobs)
    return outputs


def prompt_outputs(table: RunningTable, landed: Landed) -> list[TokenOutput]:
    """The logarithms of prompts' tokens, one output for each row that has any, and booked as reported."""
    found = landed.prompt_logprobs
    if found is None:
        return []
    outputs = []
    for row in np.unique(landed.prompt_rows[landed.prompt_rows >= 0]).tolist():
        request = table.request(row)
        entries = np.flatnonzero(landed.prompt_rows == row).tolist()
        num_top = request.sampling.prompt_logprobs or 0
        request.num_scored += len(entries)
        scored = tuple(_entry(found, i, num_top) for i in entries)
        outputs.append(TokenOutput(request.rid, None, prompt_logprobs=scored))
    return outputs


def _entry(found: Logprobs, i: int, num_top: int) -> TokenLogprobs:
    top = zip(found.top_ids[i, :num_top].tolist(), found.top[i, :num_top].tolist(), strict=True)
    return TokenLogprobs(int(found.token_ids[i]), float(found.chosen[i]), tuple(top))
