"""Calls one by one: hits by turn, the floor of their prefill, and their time on an engine."""

from collections.abc import Sequence
from statistics import fmean

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.bench.cachesim.replaying import OWN_PAGE, room_for_all
from deeproot.bench.prefill.rig import Rig
from deeproot.engine.prefill_floor import DenseModel, prefill_floor_seconds


def hits_by_turn(calls: Sequence[Call]) -> list[tuple[int, float]]:
    """Turn of a session, and the cached share of all prompts of that turn in our tree."""
    cached: dict[int, int] = {}
    total: dict[int, int] = {}
    for turn, call, hit in _served(calls):
        cached[turn] = cached.get(turn, 0) + hit
        total[turn] = total.get(turn, 0) + int(call.prompt.size)
    return [(turn, cached[turn] / total[turn]) for turn in sorted(total)]


def floor_of_calls(calls: Sequence[Call], model: DenseModel, device: str) -> float:
    """Mean seconds of a call's prefill at the least, with what our tree has of it. Raises ValueError for the device."""
    return fmean(
        prefill_floor_seconds(int(call.prompt.size) - hit, hit, model, device)
        for _, call, hit in _served(calls)
    )


def measured_ttft(calls: Sequence[Call], rig: Rig) -> float | None:
    """Mean seconds to the first token of the calls that fit in the engine's window; None if none does.

    The cache begins empty. Each answer is computed behind its prompt, as a served one is, but not counted.
    """
    rig.clear()
    times = []
    for call in calls:
        ids = call.computed_ids
        if ids.size >= rig.window:
            continue
        times.append(rig.run([call.prompt]).seconds)
        if ids.size > call.prompt.size:
            rig.run([ids])
    return fmean(times) if times else None


def _served(calls: Sequence[Call]) -> list[tuple[int, Call, int]]:
    """Turn, call and cached tokens of each."""
    tree = OwnTree(max(1, room_for_all(calls) // OWN_PAGE), OWN_PAGE)
    turns: dict[str, int] = {}
    made = []
    for call in calls:
        turns[call.session] = turns.get(call.session, 0) + 1
        made.append((turns[call.session], call, tree.serve(call).cached))
    return made
