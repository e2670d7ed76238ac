"""Whether a case's numbers are right, and how long it takes."""

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from deeproot.bench.device_check.cases import Case
from deeproot.kernels.cost import floor_seconds
from deeproot.kernels.devices import Device

_REPLAYS = 20
_MAX_SETS = 12


def check_case(case: Case, generator: torch.Generator) -> dict[str, Any]:
    """Error of each output against float64, whether all are within the tolerance, and a digest of their bytes.

    Raises ValueError if an output did not hold poison before the call.
    """
    work = case.make(generator, False)
    for name, output in work.outputs.items():
        if not _is_poison(output).any():
            raise ValueError(f"{case.name}: {name} holds no poison before the call")
    work.run()
    synchronize(generator.device)
    wanted = work.wanted()
    errors = {name: _error(output.cpu(), wanted[name]) for name, output in work.outputs.items()}
    digest = hashlib.sha256()
    for output in work.outputs.values():
        digest.update(output.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    right = all(error <= case.tolerance for error in errors.values())
    return {"errors": errors, "tolerance": case.tolerance, "right": right, "digest": digest.hexdigest()[:16]}


def _is_poison(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float().isnan() if tensor.dtype.is_floating_point else tensor == -1


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative norm of the difference, infinite where NaN stands on one side only; of whole numbers the share that differs."""
    if not got.dtype.is_floating_point:
        return float((got != wanted).double().mean())
    wide, wanted = got.double(), wanted.double()
    if not torch.equal(wide.isnan(), wanted.isnan()):
        return float("inf")
    same = wide == wanted  # infinities too
    difference = torch.where(same | wide.isnan(), 0.0, wide - wanted)
    size = wanted.nan_to_num(0.0, 0.0, 0.0).norm().clamp(min=1e-30)
    return float(difference.norm() / size)


def time_case(case: Case, generator: torch.Generator, device: Device, l2_bytes: int) -> dict[str, Any]:
    """Seconds of a call and of the floor, and whether the whole of `out` was written.

    Sets of inputs rotate, so that none is found in the L2 (`l2_bytes`).
    """
    first = case.make(generator, True)
    count = min(max(-(-2 * l2_bytes // max(first.num_bytes, 1)), 1), _MAX_SETS)
    sets = [first, *(case.make(generator, True) for _ in range(count - 1))]
    seconds = time_calls([work.run for work in sets], generator.device)
    floor = floor_seconds(first.cost, device)
    return {
        "seconds": seconds,
        "floor_seconds": floor,
        "floor_share": floor / seconds,
        "sets": count,
        "whole": "out" not in first.outputs or not bool(first.outputs["out"].isnan().any()),
    }


def time_calls(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Seconds of one call, the calls captured in a graph one after another: median over its replays.

    Without CUDA the calls are run once and timed by the clock, which says nothing about kernels.
    """
    for call in calls:
        call()
    synchronize(device)
    if device.type != "cuda":
        started = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - started) / len(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    spans = sorted(a.elapsed_time(b) for a, b in itertools.pairwise(events))
    return float(spans[len(spans) // 2]) / 1e3 / len(calls)


def synchronize(device: torch.device) -> None:
    """Wait for the device; raises what its kernels failed with."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
