"""The docs page does what it says, in the order in which it says it."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import tokenizers

DOCS = Path(__file__).parents[3] / "docs"


def test_the_worked_example_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bpe: tokenizers.Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "context.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    bpe.save("tokenizer.json")
    template = Path(__file__).parent / "templates" / "qwen2.5-instruct.jinja"
    Path("chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/context.md", "exec"), names)
    report = capsys.readouterr().out
    assert "three_zones: " in report
    assert "1 condition(s) before the cache boundary (network): 2 variants of the root" in report


def test_the_picture_is_there_and_well_formed() -> None:
    assert "(context-zones.svg)" in (DOCS / "context.md").read_text(encoding="utf-8")
    picture = ElementTree.parse(DOCS / "context-zones.svg").getroot()
    words = " ".join(text.strip() for text in picture.itertext())
    for zone in ("root", "trunk", "leaf", "archive"):
        assert zone in words
