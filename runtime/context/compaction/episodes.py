"""Where a run of old turns is cut: at anchors and users' words, at runs that passed, after so many turns."""

from collections.abc import Sequence

from deeproot.runtime.context.compaction.draft import Draft
from deeproot.runtime.context.grouping import Group


def loose_runs(draft: Draft) -> list[list[Group]]:
    """Runs of old turns that nothing pinned interrupts."""
    runs: list[list[Group]] = [[]]
    for group in draft.old():
        if group.anchored or not draft.covers([group]):
            runs.append([])
        else:
            runs[-1].append(group)
    return [run for run in runs if run]


def episodes(run: Sequence[Group], most: int) -> list[list[Group]]:
    """A run in pieces of at most `most` turns; a cut falls behind the last turn of the second half whose calls all
    passed, since there a piece of work has ended. A turn, and so a call with its results, is never cut."""
    pieces: list[list[Group]] = []
    rest = list(run)
    while len(rest) > most:
        cut = most
        for i in range(most, most // 2, -1):
            if _passed(rest[i - 1]):
                cut = i
                break
        pieces.append(rest[:cut])
        rest = rest[cut:]
    return [*pieces, rest] if rest else pieces


def _passed(group: Group) -> bool:
    results = [item for item in group.items if item.part == "observation"]
    return bool(results) and not any(item.failed for item in results)
