"""Replaced or appended: what each costs, and which is chosen."""

import numpy as np
import pytest

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.prefix_cost import Prices, common_prefix
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.mode import Mode, Outlook, Rates, cheaper_mode, dollars
from deeproot.runtime.context.status.reading import Reading
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.tokenizer import TokenIds

from ..agent_turns import begin, call
from .conftest import MakeSet

START_NS = 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("rates", "mode"),
    [
        (Rates(status=60, reply=300, changes=1, turns=30), Mode.APPEND),
        (Rates(status=60, reply=300, changes=1, turns=200), Mode.REPLACE),
        (Rates(status=1000, reply=300, changes=1, turns=30), Mode.REPLACE),
        (Rates(status=1000, reply=300, changes=0.05, turns=30), Mode.APPEND),
    ],
)
def test_the_cheaper_mode_by_length_and_rate(rates: Rates, mode: Mode) -> None:
    assert cheaper_mode(rates, Prices()) is mode


def played(make_set: MakeSet, mode: Mode | None, turns: int) -> tuple[float, Rates]:
    """Dollars of a run's prompts with a cache that keeps every prompt and reply, and the run's rates."""
    now = iter(range(1_700_000_000, 1_800_000_000))
    log = EventLog.memory(clock=lambda: next(now) * 10**9)
    working_set = make_set(AppendOnly())
    begin(log)
    known: list[TokenIds] = []
    computed = cached = status = reply = 0
    for i in range(turns):
        if mode is not None:
            StatusBar(log, mode=mode).update(
                now_ns=0, extra=[Reading("turn", f"number {i}, all is well" * 4)]
            )
        prompt = working_set.assemble(log)
        reused = max((common_prefix(earlier, prompt.token_ids) for earlier in known), default=0)
        cached, computed = cached + reused, computed + prompt.token_ids.size - reused
        call(log, "bash", {"n": i}, "ok", said="I think that it is this or that. " * 4)
        segments = {segment.key: segment for segment in working_set.assemble(log).segments}
        said = segments[f"e{len(log) - 1}"].token_ids
        opening = next(b for b in prompt.boundaries if b.key == "generation_prompt")
        known.append(np.concatenate([prompt.token_ids[: opening.start], said]))
        reply += said.size
        status += sum(b.end - b.start for b in prompt.boundaries if b.key in ("status", f"e{len(log) - 2}"))
    prices = Prices()
    return (computed * prices.full + cached * prices.cached) / 1e6, Rates(
        status / turns, reply / turns, 1, turns
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_dollars_are_those_of_a_played_run(make_set: MakeSet, mode: Mode) -> None:
    """What a status adds to the same run without one, token by token, is what the formula says."""
    turns = 25
    without, _ = played(make_set, None, turns)
    total, rates = played(make_set, mode, turns)
    assert rates.status > 50
    assert dollars(mode, rates, Prices()) == pytest.approx(total - without, rel=0.1)


def test_an_outlook_chooses_from_the_run_and_stays(log: EventLog) -> None:
    begin(log)
    bar = StatusBar(log, techniques=Techniques(call_counter=True), mode=Outlook(len, turns=30))
    for i in range(4):
        call(log, "bash", {"cmd": f"{i}"}, "ok", said="word " * 400)
        bar.update(now_ns=START_NS)
    modes = [e.data["mode"] for e in log.read() if e.data.get("part") == "status"]
    assert modes == ["append"] * 4
    large = [Reading(f"reading {i}", "x" * 200) for i in range(20)]
    other = EventLog.memory()
    begin(other)
    bar = StatusBar(other, techniques=Techniques(call_counter=True), mode=Outlook(len, turns=30))
    for i in range(4):
        call(other, "bash", {"cmd": f"{i}"}, "ok", said="short")
        bar.update(now_ns=START_NS, extra=large)
    assert {e.data["mode"] for e in other.read() if e.data.get("part") == "status"} == {"replace"}
