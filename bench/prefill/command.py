"""`deeproot bench prefill`: time to first token by length, cached share, chunk and batch, beside the floor."""

import argparse
import sys

import torch

from deeproot.bench.device_check.ceilings import measure_ceilings
from deeproot.bench.prefill import tables
from deeproot.bench.prefill.points import Plan, measure, usual_lengths
from deeproot.bench.prefill.rig import Rig
from deeproot.bench.report.energy import find_meter
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Result
from deeproot.kernels.devices import Device
from deeproot.runtime.cli import engine_options
from deeproot.runtime.engine_setup import load_engine

DONE, FAILED = 0, 2
_CEILING_TRIES = 3
_QUICK_LENGTHS, _QUICK_SHARES = (128, 512), (0, 90)


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        check_output(args)
        result = measured(args)
    except (OSError, ValueError) as error:
        print(f"deeproot bench prefill: {error}", file=sys.stderr)
        return FAILED
    show(args, result)
    return DONE


def measured(args: argparse.Namespace) -> Result:
    """Load the model and measure. Raises ValueError for what it cannot do, SetupError for what cannot be loaded."""
    before = environment()
    engine = load_engine(engine_options(args))
    rig = Rig(engine)
    plan = plan_of(args, rig)
    device = ceilings(torch.device(engine.info.device), engine.info.dtype, quick=args.quick)
    meter = find_meter()
    with progress("prefill", plan.num_points) as advance, meter:
        points = measure(rig, plan, advance)
    settings = {**settings_of(args), "window": rig.window, "attention": engine.info.attention}
    return Result(
        command="bench prefill",
        title=f"Prefill and time to first token of {settings['model']}",
        environment={**before, "dtype": engine.info.dtype},
        settings={**settings, "seed": plan.seed},
        metrics=tables.metrics(points, device, meter),
        tables=(
            tables.by_length(points, rig.config, device),
            tables.by_step(points, rig.config, device),
            tables.ceilings_table(device),
        ),
        charts=tables.charts(points, rig.config, device),
        notes=(
            "In the engine's process: from token ids to the first new token, without HTTP and tokenisation. Medians;"
            " in brackets the range over the rounds.",
            "The floor reads each weight and each K and V once a step and does every FLOP of the model's matrices at the"
            " rates that a plain copy and a plain matrix product reached on this device just before.",
            tables.energy_note(points, meter),
        ),
    )


def plan_of(args: argparse.Namespace, rig: Rig) -> Plan:
    """Raises ValueError, naming the flag, for lengths that do not fit in the window."""
    lengths = tuple(sorted(set(args.lengths or usual_lengths(rig.window))))
    shares, rounds = tuple(sorted(set(args.shares))), args.rounds
    if args.quick:
        lengths = tuple(n for n in lengths if n in _QUICK_LENGTHS) or lengths[:1]
        shares, rounds = _QUICK_SHARES, min(rounds, 2)
    if lengths[-1] >= rig.window:
        raise ValueError(
            f"--lengths {lengths[-1]}: the window has {rig.window} tokens, one of them for the answer"
        )
    chunks = tuple(c for c in (args.chunks or (rig.most_chunk // 4, rig.most_chunk)) if c)
    too_large = next((c for c in chunks if c > rig.most_chunk), None)
    if too_large is not None:
        raise ValueError(
            f"--chunks {too_large}: steps have {rig.most_chunk} tokens; raise --max-num-batched-tokens"
        )
    return Plan(lengths, shares, chunks, tuple(args.batches), rounds, args.seed)


def ceilings(device: torch.device, dtype: str, *, quick: bool) -> Device:
    """What a plain copy and a plain matrix product reach here, the best of three."""
    large = device.type == "cuda" and not quick
    size, side = (2**30, 8192) if large else (2**26, 1024)
    found = [measure_ceilings(device, getattr(torch, dtype), size, side) for _ in range(_CEILING_TRIES)]
    return Device(
        name="measured here",
        bytes_per_s=max(one["copy_bytes_per_s"] for one in found),
        bf16_flops=max(one["matmul_flops"] for one in found),
        fp8_flops=None,
        exps_per_s=float("inf"),
        source=f"a copy of {size >> 20} MiB and a product of {side} squared in {dtype}, best of {_CEILING_TRIES}",
    )
