"""What `deeproot bench prefill` shows of its points."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from deeproot.bench.prefill.floor import closed_formula, floor_of, flops
from deeproot.bench.prefill.points import Point, Sweep
from deeproot.bench.report.energy import Meter
from deeproot.bench.report.result import Chart, Column, How, Line, Metric, Table
from deeproot.engine.config import ModelConfig
from deeproot.kernels.devices import Device


def floor_s(point: Point, config: ModelConfig, device: Device) -> float:
    """Seconds at the least for a point."""
    return floor_of(point.length - point.cached, point.cached, config, device, point.chunk, point.batch)


def metrics(points: Sequence[Point], device: Device, meter: Meter) -> tuple[Metric, ...]:
    """Every sample of every point, the ceilings, and energy if it is known."""
    made: list[Metric] = []
    for point in points:
        name = f"{point.name} ({point.sweep.value})"
        ttft = tuple(1e3 * timed.seconds for timed in point.samples)
        rate = tuple(timed.computed / timed.seconds for timed in point.samples)
        made += [
            Metric(name=f"TTFT, {name}", unit="ms", how=How.MEASURED, samples=ttft),
            Metric(
                name=f"prefill rate, {name}",
                unit="tok/s",
                how=How.MEASURED,
                samples=rate,
                higher_is_better=True,
            ),
        ]
        if point.share:
            cached = (float(point.cached),)
            made.append(
                Metric(
                    name=f"cached, {name}",
                    unit="tokens",
                    how=How.COUNTED,
                    samples=cached,
                    higher_is_better=True,
                )
            )
    made.append(_ceiling("copy", "GB/s", device.bytes_per_s / 1e9))
    made.append(_ceiling("matrix product", "TFLOP/s", device.bf16_flops / 1e12))
    if meter.joules is not None:
        spent = (meter.joules / computed_tokens(points),)
        made.append(
            Metric(
                name="energy a computed token, over the whole run", unit="J", how=How.MEASURED, samples=spent
            )
        )
    return tuple(made)


def _ceiling(name: str, unit: str, value: float) -> Metric:
    return Metric(
        name=f"ceiling, {name}", unit=unit, how=How.MEASURED, samples=(value,), higher_is_better=True
    )


def computed_tokens(points: Sequence[Point]) -> int:
    """Of all rounds."""
    return sum(timed.computed for point in points for timed in point.samples)


def energy_note(points: Sequence[Point], meter: Meter) -> str:
    """Joules, or that there are none."""
    if meter.joules is None:
        return f"Energy: {meter.source}."
    computed = computed_tokens(points)
    return (
        f"Energy over the whole run: {meter.joules:,.0f} J for {computed:,} computed tokens,"
        f" {meter.joules / computed:.3f} J a token ({meter.source})."
    )


def by_length(points: Sequence[Point], config: ModelConfig, device: Device) -> Table:
    """Lengths and cached shares, beside floor and closed formula."""
    rows = []
    for point in (p for p in points if p.sweep is Sweep.LENGTH):
        new = point.length - point.cached
        floor = floor_s(point, config, device)
        whole = (
            f"{closed_formula(point.length, config) / 1e9:,.1f}"
            if not point.cached
            else "of whole prompts only"
        )
        rows.append(
            (
                f"{point.length:,}",
                f"{point.share}%",
                f"{point.cached:,}",
                _times(point),
                f"{new / point.seconds:,.0f}",
                f"{1e3 * floor:,.2f}",
                f"{floor / point.seconds:.0%}",
                f"{flops(new, point.cached, config) / 1e9:,.1f}",
                whole,
            )
        )
    columns = (
        Column("prompt tokens"),
        Column("share asked for"),
        Column("cached tokens", How.COUNTED),
        Column("TTFT, ms", How.MEASURED),
        Column("computed tokens/s", How.MEASURED),
        Column("floor, ms", How.FLOOR),
        Column("floor / measured", How.MEASURED),
        Column("GFLOP, real shapes", How.FLOOR),
        Column("GFLOP, 24MLd² + 4M²Ld", How.FLOOR),
    )
    return Table("By length and cached share", columns, tuple(rows))


def by_step(points: Sequence[Point], config: ModelConfig, device: Device) -> Table:
    """Chunk sizes and batches."""
    rows = []
    for point in (p for p in points if p.sweep is not Sweep.LENGTH):
        floor = floor_s(point, config, device)
        first = 1e3 * median(min(timed.ttft_s) for timed in point.samples)
        rows.append(
            (
                f"{point.batch} of {point.length:,} tokens, chunks of {point.chunk:,}",
                f"{first:,.1f}",
                _times(point),
                f"{point.batch * point.length / point.seconds:,.0f}",
                f"{1e3 * floor:,.2f}",
                f"{floor / point.seconds:.0%}",
            )
        )
    columns = (
        Column("prompts"),
        Column("first TTFT, ms", How.MEASURED),
        Column("last TTFT, ms", How.MEASURED),
        Column("computed tokens/s", How.MEASURED),
        Column("floor, ms", How.FLOOR),
        Column("floor / measured", How.MEASURED),
    )
    return Table("By chunk size and batch, nothing cached", columns, tuple(rows))


def ceilings_table(device: Device) -> Table:
    """What plain work reaches."""
    columns = (Column("ceiling"), Column("rate", How.MEASURED))
    rows = (
        ("plain copy, read and written", f"{device.bytes_per_s / 1e9:,.1f} GB/s"),
        ("plain matrix product", f"{device.bf16_flops / 1e12:,.3f} TFLOP/s"),
    )
    return Table("What the device reaches", columns, rows, device.source)


def charts(points: Sequence[Point], config: ModelConfig, device: Device) -> tuple[Chart, ...]:
    """TTFT by length, and how near it is to the floor."""
    of_length = [p for p in points if p.sweep is Sweep.LENGTH]
    times, reached = [], []
    for share in sorted({p.share for p in of_length}):
        found = [p for p in of_length if p.share == share]
        name = f"{share}% cached"
        times.append(Line(name, tuple((float(p.length), 1e3 * p.seconds) for p in found)))
        near = tuple((float(p.length), 100 * floor_s(p, config, device) / p.seconds) for p in found)
        reached.append(Line(name, near))
    common: dict[str, Any] = {"x": "prompt tokens", "how": How.MEASURED, "log_x": True}
    return (
        Chart(key="ttft", title="Time to first token", y="ms", lines=tuple(times), log_y=True, **common),
        Chart(key="of_floor", title="Floor over measured time", y="%", lines=tuple(reached), **common),
    )


def _times(point: Point) -> str:
    found = sorted(1e3 * timed.seconds for timed in point.samples)
    return f"{1e3 * point.seconds:,.1f} ({found[0]:,.1f} to {found[-1]:,.1f})"
