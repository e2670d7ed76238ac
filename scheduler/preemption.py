"""Who goes back to the queue when pages run out."""

from deeproot.scheduler.request import Request
from deeproot.scheduler.table import RunningTable


def choose_victim(table: RunningTable) -> Request:
    """Of those that have written something since they were preempted last, or never were, the one of the lowest priority that
    has computed least in this run; the newest of several. The one that runs longest only if there is no other.

    There always is one: all that the others need now was theirs when they started (`Admission`), so whoever lacks a page has
    written. And since each preemption but the first of a request costs a token that it has written, all come to their end.
    """
    progressed = [
        one for one in table.running() if int(table.num_tokens[one.row]) > one.tokens_when_preempted
    ]
    oldest = table.running()[0]
    return min(
        [one for one in reversed(progressed) if one is not oldest] or progressed,
        key=lambda one: (-one.priority, int(table.num_computed[one.row]) - one.start),
    )
