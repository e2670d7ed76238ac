"""Pages, plots, progress, energy and environment of results."""

import io
import re
import xml.etree.ElementTree as ET
from argparse import Namespace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from deeproot.bench.report import output
from deeproot.bench.report.energy import NoMeter, RaplMeter, find_meter
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.page import as_page
from deeproot.bench.report.plots import as_svg
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Chart, Column, How, Line, Metric, Result, Table, read_result
from deeproot.bench.report.text import as_text

EVIL = '</script><img src="http://example.com/x" onerror=alert(1)> & "quoted"'
CHARTS = (
    Chart(
        key="lines",
        title=EVIL,
        x="x",
        y="ms",
        how=How.MEASURED,
        lines=tuple(Line(f"line {i}", ((1.0, 2.0 + i), (10.0, 30.0))) for i in range(11)),
        log_x=True,
        log_y=True,
    ),
    Chart(
        key="points",
        title="points",
        x="x",
        y="y",
        how=How.COUNTED,
        lines=(Line("<a>", ((1.0, 2.0),)),),
        joined=False,
    ),
)
RESULT = Result(
    command="bench x",
    title=EVIL,
    environment={"device": "a device", "date": "2026-01-01"},
    settings={"seed": 1, "text": EVIL},
    metrics=(Metric(name=EVIL, unit="ms", how=How.FLOOR, samples=(1.0, 3.0)),),
    tables=(
        Table(
            "a table",
            (Column("name"), Column("n", How.COUNTED), Column("ms", How.MEASURED)),
            ((EVIL, "1,000", "2.5"),),
            "a note",
        ),
    ),
    charts=CHARTS,
    notes=("a remark",),
)


class _Reader(HTMLParser):
    """Notes what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")
        ]
        assert not any(name.startswith("on") for name, _ in attrs)


def test_a_page_stands_alone_and_escapes_what_it_shows() -> None:
    page = as_page(RESULT)
    reader = _Reader()
    reader.feed(page)
    assert reader.loads == []
    assert reader.tags.count("script") == 1
    assert "img" not in reader.tags
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert "prefers-color-scheme: dark" in page
    for text in ("a table", "a note", "a remark", "measured on this device", "floor from the cost model"):
        assert text in page
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
@pytest.mark.parametrize("inline", [False, True])
def test_svg_is_well_formed_and_the_same_each_time(chart: Chart, inline: bool) -> None:
    text = as_svg(chart, inline=inline)
    ET.fromstring(text)
    assert text == as_svg(chart, inline=inline)
    assert chart.how.value in text
    assert ("currentColor" in text) is inline


def test_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(out=tmp_path / "a" / "b", json=False)
    output.check_output(args)
    output.show(args, RESULT)
    assert {path.name for path in args.out.iterdir()} == {
        "result.json",
        "report.html",
        "lines.png",
        "lines.svg",
        "points.png",
        "points.svg",
    }
    assert read_result(args.out / "result.json") == RESULT
    assert (args.out / "lines.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    shown = capsys.readouterr().out
    assert shown.strip() == as_text(RESULT).strip()
    assert "n [c]" in shown
    assert "[m] measured on this device" in shown
    assert "[f]" not in shown


def test_plots_need_matplotlib_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.importlib.util, "find_spec", lambda name: None)
    output.check_output(Namespace(out=None))
    with pytest.raises(output.MissingPlots, match=r"pip install 'deeproot\[bench\]'"):
        output.check_output(Namespace(out=tmp_path))


def test_progress_on_a_terminal_and_elsewhere() -> None:
    plain = io.StringIO()
    with progress("work", 8, plain) as advance:
        for _ in range(8):
            advance("a piece")
    assert plain.getvalue().splitlines() == [f"work: {n} of 8" for n in (2, 4, 6, 8)]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    with progress("work", 2, shown) as advance:
        advance("first")
        advance("")
    assert "work" in shown.getvalue()


def _zone(folder: Path, name: str, used: int) -> Path:
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(str(used))
    (zone / "max_energy_range_uj").write_text("1000000000")
    return zone


def test_joules_of_packages_also_where_a_counter_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deeproot.bench.report.energy.shutil.which", lambda name: None)
    assert isinstance(find_meter(tmp_path), NoMeter)
    first, second = _zone(tmp_path, "intel-rapl:0", 5_000_000), _zone(tmp_path, "intel-rapl:1", 999_000_000)
    _zone(tmp_path, "intel-rapl:0:0", 1)  # a part of the first: counted with it
    meter = find_meter(tmp_path)
    assert isinstance(meter, RaplMeter)
    with meter:
        (first / "energy_uj").write_text("7000000")
        (second / "energy_uj").write_text("2000000")
    assert meter.joules == pytest.approx(2 + 3)
    (first / "energy_uj").write_text("no number")
    assert find_meter(tmp_path).source.startswith("not measured")


def test_watts_of_gpus_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 100.5\necho 99.5\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    meter = find_meter(tmp_path)
    assert meter.source.startswith("nvidia-smi")
    with meter:
        pass
    assert meter.joules is not None
    assert meter.joules > 0


def test_environment_and_settings_name_no_paths_and_keep_no_keys(tmp_path: Path) -> None:
    found = environment()
    assert found["python"].count(".") == 2
    assert found["device"]
    model = tmp_path / "model.gguf"
    model.touch()
    args = Namespace(
        model=str(model), api_key="secret", file=model, lengths=[1, 2], out=tmp_path, seed=3, none=None
    )
    assert settings_of(args) == {"model": "model.gguf", "file": "model.gguf", "lengths": [1, 2], "seed": 3}
