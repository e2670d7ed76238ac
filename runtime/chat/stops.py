"""Stop strings in a stream of text."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.chat.marks import start_of_partial


@dataclass(frozen=True, slots=True)
class StopResult:
    text: str
    """Text that may be shown now."""
    matched: str | None = None
    """The stop string that was found; nothing may follow."""


class StopMatcher:
    """Cuts a text off at the first of several strings, however the text is cut into pieces.

    The first is the one that is complete first; of those complete at the same character, the longest. Text that
    could yet be the start of a stop string is held back, so no part of one is ever shown.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`include_stop`: show the stop string itself at the end. ValueError if a stop string is empty."""
        if any(not stop for stop in stops):
            raise ValueError("stop: an empty string would stop at once; leave it out")
        self._stops = tuple(dict.fromkeys(stops))
        self._include_stop = include_stop
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> StopResult:
        """Take the next piece of text. After a match every further piece is swallowed."""
        if self._stopped:
            return StopResult("")
        if not self._stops:
            return StopResult(text)
        text = self._held + text
        first = min(
            ((at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None
        )
        if first is not None:
            end, start, stop = first
            self._stopped, self._held = True, ""
            return StopResult(text[: end if self._include_stop else start], stop)
        shown = start_of_partial(text, self._stops)
        self._held = text[shown:]
        return StopResult(text[:shown])

    def finish(self) -> str:
        """The text ended: what was held back was no stop string after all."""
        held, self._held, self._stopped = self._held, "", True
        return held
