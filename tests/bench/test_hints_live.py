"""The trace that real servers are measured with."""

import pytest

from deeproot.bench.hints_live import main
from deeproot.bench.hints_trace import Session, Shape, made_call, singles


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
