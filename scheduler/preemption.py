"""Who goes back to the queue when pages run out."""

from deeproot.scheduler.request import Request
from deeproot.scheduler.table import RunningTable


def choose_victim(table: RunningTable) -> Request:
    """Of the lowest priority, the request that has computed least in this run; the newest of several.

    Never the one that runs longest, unless it runs alone, so that one always comes to its end; and none a second time
    before it has written more than it had, unless there is no other.
    """
    running = table.running()[1:][::-1] or table.running()
    others = [one for one in running if int(table.num_tokens[one.row]) > one.tokens_when_preempted]
    return min(
        others or running,
        key=lambda one: (-one.priority, int(table.num_computed[one.row]) - one.start),
    )
