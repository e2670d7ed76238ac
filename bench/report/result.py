"""What a benchmark found, in a form that is written, read back, compared and shown."""

from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

FORM = 1
"""Of the JSON; raised when an older reader could misread a newer file."""


class ResultError(ValueError):
    """A file is no result. The message names the file and the field."""


class How(StrEnum):
    """What kind of number something is."""

    MEASURED = "measured on this device"
    COUNTED = "counted exactly"
    FLOOR = "floor from the cost model"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity. `samples`: each time that it was taken, in `unit`; of a counted one, one is enough."""

    name: str
    unit: str
    how: How
    samples: tuple[float, ...]
    higher_is_better: bool = False

    @property
    def median(self) -> float:
        return median(self.samples)


class Column(msgspec.Struct, frozen=True):
    """A column of a table. `how`: None for one that only names its row."""

    title: str
    how: How | None = None


class Table(msgspec.Struct, frozen=True):
    """Cells as they are shown; what could not be had says so in words."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


class Line(msgspec.Struct, frozen=True):
    """One of a chart's series: its points as (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A plot. `key`: name of its file. `joined`: points are joined by lines."""

    key: str
    title: str
    x: str
    y: str
    how: How
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    joined: bool = True


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All that one command found. `environment`: versions, device, model; `settings`: flags and seed."""

    command: str
    title: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    metrics: tuple[Metric, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    form: int = FORM


def encode(result: Result) -> str:
    """As indented JSON."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode()


def read_result(path: Path) -> Result:
    """A result that `encode` has written. Raises `ResultError`, or OSError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ResultError(
            f"{path}: no result of a benchmark ({error}); give a result.json that --out has written"
        ) from None
    if found.form != FORM:
        raise ResultError(f"{path}: form is {found.form}, and this version reads {FORM}; measure again")
    empty = next((metric.name for metric in found.metrics if not metric.samples), None)
    if empty is not None:
        raise ResultError(f"{path}: metric {empty!r} has no samples")
    return found
