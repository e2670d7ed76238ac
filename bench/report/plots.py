"""Charts as SVG and PNG, drawn by matplotlib, which `pip install 'deeproot[bench]'` brings."""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from deeproot.bench.report.result import Chart, Line

_COLOURS = ("#2f80c9", "#d9722e", "#2e9e6b", "#b65fc0", "#c0435a", "#8a8f2c", "#3aa6b9", "#8c6bd6", "#7f7f7f")
"""Seen on white and on near black."""
_INK = "#505860"
_MARKERS = "osD^vPX*h"
_NAMES_INSIDE = 9
_FEW_POINTS = 30


def as_svg(chart: Chart, *, inline: bool = False) -> str:
    """One chart. inline: for a page of ours, whose style sheet then gives text and axes their colour."""
    held = io.StringIO()
    # The text stays text, and the same chart gives the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.key}):
        _draw(chart, transparent=inline).savefig(
            held, format="svg", transparent=inline, metadata={"Date": None, "Creator": None}
        )
    text = held.getvalue()
    if not inline:
        return text
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Several charts stand in one page, where ids must not meet.
    return re.sub(r'((?:id="|href="#|url\(#))', rf"\g<1>{chart.key}-", text)


def write_png(chart: Chart, path: Path) -> None:
    """One chart as a picture on white."""
    figure = _draw(chart, transparent=False)
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


def _draw(chart: Chart, *, transparent: bool) -> Figure:
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()
    for i, line in enumerate(chart.lines):
        _add(axes, line, i, joined=chart.joined)
    for wanted, scale, axis in (
        (chart.log_x, axes.set_xscale, axes.xaxis),
        (chart.log_y, axes.set_yscale, axes.yaxis),
    ):
        if wanted:
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axis.set_minor_formatter(NullFormatter())
    axes.set_title(chart.title, loc="left", color=_INK, fontsize=11)
    axes.set_xlabel(chart.x, color=_INK)
    axes.set_ylabel(f"{chart.y}\n({chart.how.value})", color=_INK)
    axes.tick_params(colors=_INK, which="both")
    axes.grid(visible=True, color=_INK, alpha=0.18, linewidth=0.6)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_INK)
    if len(chart.lines) > 1:
        outside = not chart.joined or len(chart.lines) > _NAMES_INSIDE
        place: dict[str, Any] = {"loc": "outside right upper"} if outside else {"loc": "best"}
        (figure if outside else axes).legend(frameon=False, labelcolor=_INK, fontsize=8.5, **place)
    if transparent:
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
    return figure


def _add(axes: Any, line: Line, number: int, *, joined: bool) -> None:
    xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
    again, place = divmod(number, len(_COLOURS))
    colour, marker = _COLOURS[place], _MARKERS[(place + 4 * again) % len(_MARKERS)]
    style = "--" if again else "-"
    axes.plot(
        xs,
        ys,
        label=line.name,
        color=colour,
        marker=marker if len(xs) <= _FEW_POINTS else None,
        markersize=4 if joined else 7,
        linestyle=style if joined else "none",
        linewidth=1.6,
    )
