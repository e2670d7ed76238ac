"""Where a result goes: to the terminal, as JSON, and into a folder with plots and a page."""

import argparse
import importlib
import importlib.util
from pathlib import Path

from deeproot.bench.report.result import Result, encode
from deeproot.bench.report.text import as_text


class MissingPlots(ValueError):
    """Plots are asked for and matplotlib is not installed."""


def check_output(args: argparse.Namespace) -> None:
    """Before anything is measured: can `--out` be served? Raises `MissingPlots` or OSError."""
    if args.out is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPlots("--out draws plots, which needs matplotlib: pip install 'deeproot[bench]'")
    args.out.mkdir(parents=True, exist_ok=True)


def show(args: argparse.Namespace, result: Result) -> None:
    """Print it, and write it into `--out` if that is given."""
    if args.out is not None:
        write(args.out, result)
    print(encode(result) if args.json else as_text(result))


def write(folder: Path, result: Result) -> None:
    """`result.json`, `report.html`, and a PNG and an SVG of each chart."""
    page = importlib.import_module("deeproot.bench.report.page")
    plots = importlib.import_module("deeproot.bench.report.plots")
    (folder / "result.json").write_text(encode(result) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page.as_page(result), encoding="utf-8")
    for chart in result.charts:
        plots.write_png(chart, folder / f"{chart.key}.png")
        (folder / f"{chart.key}.svg").write_text(plots.as_svg(chart), encoding="utf-8")


def write_page(folder: Path, result: Result) -> None:
    """`result.json`, and the text as `README.md`: a result that is kept beside the sources."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(encode(result) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(f"# {as_text(result)}\n", encoding="utf-8")
