"""What can leave the prompt together with an observation that no longer holds."""

from collections.abc import Iterable

from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.items import Item


class Callers:
    """Who asked for which result, of the items of one prompt."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._messages: dict[str, list[Item]] = {}
        self._results: dict[str, list[Item]] = {}
        self._newest = 0
        for item in items:
            if item.part == "assistant":
                self._newest = max(self._newest, item.seq)
                for call_id in item.call_ids:
                    self._messages.setdefault(call_id, []).append(item)
            elif item.call_id is not None:
                self._results.setdefault(item.call_id, []).append(item)

    def evictable(self, item: Item, state: State) -> tuple[int, ...]:
        """Events to take out for `item`: its own, and the message whose only call asked for it.

        None if it must stay: what is only in doubt, anchors, the newest turn, one of several results of a message, and
        what is neither a file nor a tool's result.
        """
        if state is not State.STALE or item.anchor:
            return ()
        if item.part == "artifact":
            return (item.seq,) if item.seq < self._newest else ()
        if item.part != "observation" or item.call_id is None:
            return ()
        callers = self._messages.get(item.call_id, [])
        alone = len(callers) == 1 and callers[0].call_ids == (item.call_id,)
        if not alone or callers[0].anchor or callers[0].seq == self._newest:
            return ()
        return (callers[0].seq, item.seq) if self._results[item.call_id] == [item] else ()
