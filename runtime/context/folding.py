"""Views of source files as their skeletons, where a layout asks for them."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from deeproot.runtime.context.events import Event, payload_text
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.skeleton.fold import Skeleton, skeleton_of_file
from deeproot.runtime.context.skeleton.languages import SkeletonUnavailableError
from deeproot.runtime.context.staging import Stager

_NUMBER = re.compile(r"[ ]*\d+(?:\t|: ?|\| ?)", re.ASCII)
_MOST_CHARACTERS = 1_000_000
"""Longer sources are data, and would keep the parser busy for seconds."""


class Folder:
    """Folds the file views of one log. `payload`: an event's raw bytes. `keep`: symbols that are left whole.

    A view is folded if its file is in one of the nine languages and its text, without line numbers, is all of a
    source that parses; other views (a window of a file, a diff) stay as they are.
    """

    def __init__(
        self, stager: Stager, payload: Callable[[Event], bytes], *, keep: Collection[str] = ()
    ) -> None:
        self._stager = stager
        self._payload = payload
        self._keep = tuple(keep)
        self._made: dict[str, Item | None] = {}
        self.unavailable: dict[str, None] = {}
        """Why views were not folded that a layout wanted to be: the package that is missing."""

    def __call__(self, item: Item) -> Item | None:
        """The item with its skeleton for its text; None if it is no view of a source file, or would be no shorter."""
        if item.key not in self._stager.views:
            return None
        if item.key not in self._made:
            self._made[item.key] = self._fold(item)
        return self._made[item.key]

    def _fold(self, item: Item) -> Item | None:
        event = self._stager.event_of(item)
        numbers, source = _without_numbers(payload_text(self._payload(event)))
        if len(source) > _MOST_CHARACTERS:
            return None
        keep = (*self._keep, *map(str, event.data.get("keep", ())))
        try:
            made = skeleton_of_file(self._stager.views[item.key], source, keep=keep)
        except SkeletonUnavailableError as error:
            self.unavailable[f"skeletons are off: {error}"] = None
            return None
        if made is None or not made.source_parses or not made.folds:
            return None
        where = item.source.payload_hash[:16]
        bodies = f"{len(made.folds)} bodies" if len(made.folds) > 1 else "1 body"
        text = f"[skeleton: {bodies} folded; the archive has all of it as {where}]\n{_shown(made, numbers)}"
        shorter = self._stager.stand_in(item, text, "")
        if shorter.tokens >= item.tokens:
            return None
        note = f"skeleton: {item.tokens} -> {shorter.tokens} tokens, {bodies} folded, all of it under {where}"
        return replace(shorter, notes=(*item.notes, note))


def _without_numbers(text: str) -> tuple[list[str], str]:
    """The numbers that `cat -n` and editors put before each line, none if they do not, and the text without them."""
    lines = text.split("\n")
    found = [_NUMBER.match(line) for line in lines]
    if len(lines) < 3 or not all(f or not line for f, line in zip(found, lines, strict=True)):
        return [], text
    numbers = [f[0] if f else "" for f in found]
    return numbers, "\n".join(line[len(n) :] for line, n in zip(lines, numbers, strict=True))


def _shown(made: Skeleton, numbers: Sequence[str]) -> str:
    """The skeleton, each line with the number that its first character had."""
    if not numbers:
        return made.text
    lines = made.text.split("\n")
    return "\n".join(numbers[made.source_line(n) - 1] + line for n, line in enumerate(lines, 1))
