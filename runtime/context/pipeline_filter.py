"""The filter pipeline as staging uses it: each tool result once, in the log's order."""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deeproot.runtime.context.event_actions import EventActions
from deeproot.runtime.context.events import Event
from deeproot.runtime.context.extract.extract import extract, worth_extracting
from deeproot.runtime.context.filters.base import Filter, FilterContext
from deeproot.runtime.context.filters.observation import Action, Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import Pipeline, PipelineResult, default_filters
from deeproot.runtime.context.filters.superseded import SupersededReadFilter
from deeproot.runtime.context.stage_filter import Filtered, Superseded


class PipelineFilter:
    """A `StageFilter` for one log. `count`: tokens of a text. `filters`: the stages (None: the usual ones).

    `extract_over`: output of builds, tests and linters over that many tokens is staged as its diagnostics (None:
    never); where no format is known, all of it stays.
    Superseded reads are not touched here: which ones there are is told, and the layout says when they shrink.
    """

    def __init__(
        self,
        count: Callable[[str], int],
        filters: Sequence[Filter] | None = None,
        *,
        extract_over: int | None = 400,
    ) -> None:
        stages = default_filters() if filters is None else filters
        self._pipeline = Pipeline(
            [stage for stage in stages if not isinstance(stage, SupersededReadFilter)], count_tokens=count
        )
        self._count = count
        self._extract_over = extract_over
        self._pointer = SupersededReadFilter()
        self._log = ObservationLog()
        self._actions = EventActions()
        self._views: dict[str, list[int]] = {}
        """Views of each file that nothing has changed since."""
        self._superseded: list[Superseded] = []

    def add(self, event: Event, text: str, call: Mapping[str, Any] | None) -> Filtered:
        """Filter the next tool result; remember what it was of."""
        action = self._actions.read(event, text, call)
        index = self._log.append(Observation(event.seq, action, text, event.time_ns / 1e9))
        self._note(index, action)
        result = self._pipeline.run(text, FilterContext(self._log, index))
        text, extraction = self._extracted(action, result.text)
        return Filtered(text, _notes(result) + extraction, action.shows, result.same_as)

    def _extracted(self, action: Action, text: str) -> tuple[str, tuple[str, ...]]:
        """Diagnostics instead of a long output, if it is of a known format and not a text that was asked for."""
        if self._extract_over is None or action.shows is not None or not worth_extracting(action.command):
            return text, ()
        size = self._count(text)
        if size <= self._extract_over:
            return text, ()
        found = extract(text)
        left = self._count(found.text)
        if not found.tools or "fallback" in found.tools or left >= size:
            return text, ()
        return found.text, (
            f"extraction ({', '.join(found.tools)}): {size} -> {left} tokens, {found.omitted} lines left out",
        )

    def take_superseded(self) -> list[Superseded]:
        """Views that edits made stale since the last question."""
        found, self._superseded = self._superseded, []
        return found

    def _note(self, index: int, action: Action) -> None:
        """Views of files that this action changed are stale from here on; then remember its own."""
        for path in dict.fromkeys(map(posixpath.normpath, action.changes)):
            for stale in self._views.pop(path, ()):
                result = self._pointer.apply(self._log[stale].text, FilterContext(self._log, stale))
                if result.exempt:
                    self._superseded.append(
                        Superseded(self._log[stale].seq, self._log[index].seq, result.text)
                    )
        if action.shows is not None:
            self._views.setdefault(posixpath.normpath(action.shows), []).append(index)


def _notes(result: PipelineResult) -> tuple[str, ...]:
    notes = []
    for stage in result.stages:
        if stage.refused:
            notes.append(f"{stage.stage}: refused, would have lost {len(stage.refused)} facts")
        elif stage.drops or stage.tokens_in != stage.tokens_out:
            notes.append(f"{stage.stage}: {stage.tokens_in} -> {stage.tokens_out} tokens")
    return tuple(notes)
