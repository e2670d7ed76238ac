"""A result as one HTML file that needs nothing from elsewhere, dark or light as its reader's system is."""

from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from deeproot.bench.report.plots import as_svg
from deeproot.bench.report.result import Result
from deeproot.bench.report.text import MARKS

_PAGE = Path(__file__).parent / "page.html.jinja"


def as_page(result: Result) -> str:
    """The whole file. Texts of the result are escaped."""
    environment = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    template = environment.from_string(_PAGE.read_text(encoding="utf-8"))
    # Drawn by matplotlib from texts that it escapes.
    svgs = {chart.key: Markup(as_svg(chart, inline=True)) for chart in result.charts}
    defaults = {"device": "", "date": ""}
    shown = {**defaults, **result.environment}
    return template.render(result=result, marks=MARKS, svgs=svgs, device=shown["device"], date=shown["date"])
