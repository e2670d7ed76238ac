"""The one visible pipeline: filters in order, each guarded, each with its tokens in and out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deeproot.runtime.context.filters.base import Drop, Filter, FilterContext, original_lines
from deeproot.runtime.context.filters.headers import HeaderFilter
from deeproot.runtime.context.filters.hunks import HunkFilter
from deeproot.runtime.context.filters.repeats import RepeatFilter
from deeproot.runtime.context.filters.reread import RereadDiffFilter
from deeproot.runtime.context.filters.superseded import SupersededReadFilter
from deeproot.runtime.context.filters.terminal import TerminalFilter
from deeproot.runtime.context.retention import Fact, lost

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one filter did to one text."""

    stage: str
    tokens_in: int
    tokens_out: int
    drops: tuple[Drop, ...]
    """In line numbers of the stage's own input."""
    refused: tuple[Fact, ...] = ()
    """Facts that the stage would have lost; then its result was not used."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """A filtered text and its account."""

    text: str
    stages: tuple[StageReport, ...]
    same_as: int | None = None
    """See `FilterResult.same_as`."""

    def original_lines(self, line: int) -> tuple[int, int]:
        """Which lines of the archived original (from 1, both included) stand behind a line of the text."""
        return original_lines([s.drops for s in self.stages], line)


def default_filters() -> tuple[Filter, ...]:
    """Whole-text pointers first, since what they replace need not be cleaned."""
    return (SupersededReadFilter(), RepeatFilter(), TerminalFilter(), HeaderFilter(), HunkFilter())


def diff_filters() -> tuple[Filter, ...]:
    """The same, but a file read again is shown as a diff against its first view, which stays."""
    return (RereadDiffFilter(), RepeatFilter(), TerminalFilter(), HeaderFilter(), HunkFilter())


class Pipeline:
    """Runs a text through the filters. The caller archives the original first; nothing here stores anything."""

    def __init__(self, filters: Sequence[Filter] | None = None, *, count_tokens: CountTokens) -> None:
        """`count_tokens`: length of a text in tokens of the model in use; `len` counts characters instead."""
        self._filters = default_filters() if filters is None else tuple(filters)
        self._count = count_tokens

    def run(self, text: str, ctx: FilterContext | None = None) -> PipelineResult:
        """Filter one text. A stage whose result loses a fact is refused and passed over, and the report says so."""
        ctx = FilterContext() if ctx is None else ctx
        stages: list[StageReport] = []
        tokens = self._count(text)
        for stage in self._filters:
            result = stage.apply(text, ctx)
            missing = [] if result.exempt or result.text is text else lost(text, result.text)
            if missing:
                stages.append(StageReport(stage.name, tokens, tokens, (), tuple(missing)))
                continue
            before = tokens
            if result.text is not text:
                tokens = self._count(result.text)
            stages.append(StageReport(stage.name, before, tokens, result.drops))
            text = result.text
            if result.exempt:
                return PipelineResult(text, tuple(stages), result.same_as)
        return PipelineResult(text, tuple(stages))
