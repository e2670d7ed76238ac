"""The same trace on real servers with a tiny model: hints keep more of it cached than least recently used alone."""

import json
from pathlib import Path

import pytest
from tests.runtime.tiny_model import write_tiny_model

from deeproot.bench.hints_live import ARMS, main
from deeproot.bench.hints_trace import Session, Shape, made_call, singles


def test_more_is_cached_and_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "tiny", max_position_embeddings=8192)
    size = ("--sessions", "6", "--turns", "4", "--cold", "60", "--rounds", "1", "--page-size", "16")
    pace = ("--one-by-one", "--words", "0.06", "--share", "0.4")
    kind = ("--serve", "--load-format", "dummy", "--dtype", "float32", "--device", "cpu")
    assert main(["--model", str(model), *size, *pace, "--out", str(tmp_path / "out"), *kind]) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    hits = {metric["name"]: metric["samples"][0] for metric in found["metrics"] if "share" in metric["name"]}
    plain, hinted = (hits[f"cached share, {arm}"] for arm in ARMS)
    (table,) = found["tables"]
    heads = [column["title"] for column in table["columns"]]
    rows = [dict(zip(heads, row, strict=True)) for row in table["rows"]]
    assert [row["answered"] for row in rows] == [str(6 * 4 + 60)] * 2
    assert [row["refused"] for row in rows] == ["0", "0"]
    assert rows[0]["found under leases"] == "0"
    assert rows[1]["found under leases"] != "0"
    assert hinted > 1.1 * plain > 0, rows
    assert "README.md" in {path.name for path in (tmp_path / "out").iterdir()}
    assert capsys.readouterr().out.strip() in (tmp_path / "out" / "README.md").read_text()


def test_a_trace_is_the_same_from_the_same_seed() -> None:
    shape = Shape(turns=20, most=400)
    sent = [[], []]
    for requests in sent:
        for number in range(2):
            session = Session(shape, 5, number)
            for step in session.steps:
                requests.append(session.messages())
                session.answered([made_call(step.tool)], step)
    assert sent[0] == sent[1]
    first, second = sent[0][:20], sent[0][20:]
    assert first[0][0] == second[0][0], "one root"
    assert first[0][1] != second[0][1], "tasks of their own"
    assert any("left out" in messages[1]["content"] for messages in first)
    assert max(len(messages) for messages in first) < 2 + 2 * 19
    for messages in first:
        roles = [message["role"] for message in messages]
        assert roles == ["system", "user", *["assistant", "tool"] * ((len(roles) - 2) // 2)]
    cold = list(singles(shape, 5))
    assert cold == list(singles(shape, 5))
    assert len({messages[0]["content"] for _, messages in cold}) == shape.cold


@pytest.mark.parametrize(("flags", "says"), [(["--share", "0"], "between"), (["--turns", "0"], "at least 1")])
def test_values_that_cannot_work_are_named(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "x", *flags])
    assert says in capsys.readouterr().err
