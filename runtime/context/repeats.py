"""Repeated outputs whose first is no longer in the prompt: a pointer to nothing would help nobody."""

from collections.abc import Collection

from deeproot.runtime.context.grouping import Group
from deeproot.runtime.context.items import PlanContext


class Repeats:
    """What layouts that leave turns out keep of pointers. `gone`: numbers of the events that are out.

    `homes`: of those that were pointed to, which event shows their output now.
    """

    def __init__(self, context: PlanContext, gone: Collection[int] = ()) -> None:
        self._context = context
        self.gone = set(gone)
        self.homes: dict[int, int] = {}

    def mend(self, group: Group, now: int) -> None:
        """The first pointer to what is out becomes the output itself, later ones point to that. Feed groups in order.

        Views that an edit up to event `now` made stale are left alone: they are to be pointers to that edit.
        """
        if not self.gone:
            return
        for i, item in enumerate(group.items):
            repeat = self._context.repeats.get(item.key)
            if repeat is None or repeat.same_as not in self.gone:
                continue
            stale = self._context.replacements.get(item.key)
            if stale is None or stale.since > now:
                group.swap(i, repeat.stand_in(self.homes.setdefault(repeat.same_as, item.seq)))
