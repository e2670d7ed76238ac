"""The third call too many: a model that acts on nothing but its prompt, with a naive prompt and with a status."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.limits import CallLimit
from deeproot.runtime.context.status.mode import Mode
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

from ..agent_turns import TOOLS, call

Messages = Sequence[Mapping[str, Any]]
AT_MOST = 3
RULE = f"Call each merchant at most {AT_MOST} times."


def counting_model(messages: Messages) -> str | None:
    """Counts, as well as any model could: by the status if there is one, else the calls that its prompt still shows."""
    text = "\n".join(str(message["content"]) for message in messages)
    told = re.findall(r"^phone_call to Xfinity: \d+ calls \((\d+)/(\d+)\)", text, re.M)
    if told:
        made, most = map(int, told[-1])
    else:
        calls = [c["function"] for m in messages for c in m.get("tool_calls") or ()]
        made = sum(c["name"] == "phone_call" and "Xfinity" in str(c["arguments"]) for c in calls)
        most = AT_MOST
    return "Xfinity" if made < most else None


def glancing_model(messages: Messages) -> str | None:
    """Does not count at all: it stops only where its prompt says in so many words that it must."""
    text = "\n".join(str(message["content"]) for message in messages)
    return None if "maximum reached: do not call phone_call to Xfinity again" in text else "Xfinity"


def play(
    log: EventLog, working_set: WorkingSet, bar: StatusBar | None, model: Callable[[Messages], str | None]
) -> int:
    """Phone until the model stops, with other work between the calls; how often Xfinity was called."""
    record.policy(log, "You cancel contracts by phone.")
    record.constraint(log, RULE)
    record.tools(log, TOOLS)
    record.user(
        log, "Cancel my contract with Xfinity; if nobody answers, look into the contract and try again."
    )
    made = 0
    for i in range(6):
        if bar is not None:
            bar.update(now_ns=0)
        merchant = model(working_set.assemble(log).messages)
        if merchant is None:
            return made
        call(log, "phone_call", {"to": merchant}, "Nobody answers.")
        made += 1
        for page in range(4):
            call(log, "read_file", {"page": f"{i}.{page}"}, f"clause {page} of the contract " * 20)
    return made


@pytest.fixture
def make_set(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]
) -> Callable[..., WorkingSet]:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")

    def make(policy: LayoutPolicy, **options: Any) -> WorkingSet:
        return WorkingSet(policy=policy, tokenizer=segments, template=template, **options)

    return make


def limit_bar(log: EventLog, mode: Mode = Mode.REPLACE) -> StatusBar:
    return StatusBar(log, limits=[CallLimit("phone_call", AT_MOST, "to")], mode=mode)


def test_a_window_forgets_how_often_it_has_called(log: EventLog, make_set: Callable[..., WorkingSet]) -> None:
    assert play(log, make_set(SlidingWindow(4000)), None, counting_model) > AT_MOST


def test_all_the_calls_in_sight_do_not_count_themselves(
    log: EventLog, make_set: Callable[..., WorkingSet]
) -> None:
    assert play(log, make_set(AppendOnly()), None, glancing_model) > AT_MOST


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("model", [counting_model, glancing_model])
@pytest.mark.parametrize("policy", [ThreeZones(4000), SlidingWindow(4000), AppendOnly()])
def test_three_of_three(
    log: EventLog,
    make_set: Callable[..., WorkingSet],
    model: Callable[[Messages], str | None],
    mode: Mode,
    policy: LayoutPolicy,
) -> None:
    assert play(log, make_set(policy), limit_bar(log, mode), model) == AT_MOST


def test_the_counter_on_the_results_is_enough_for_a_model_that_reads(
    log: EventLog, make_set: Callable[..., WorkingSet]
) -> None:
    """The call counter alone, without a status: the newest result says which call it was."""

    def reading_model(messages: Messages) -> str | None:
        text = "\n".join(str(message["content"]) for message in messages)
        told = [int(number) for number in re.findall(r"^\[call (\d+) of phone_call\]$", text, re.M)]
        return None if told and told[-1] >= AT_MOST else "Xfinity"

    assert play(log, make_set(AppendOnly()), None, reading_model) > AT_MOST
    other = EventLog.memory(clock=lambda: 0)
    working_set = make_set(AppendOnly(), techniques=Techniques(call_counter=True))
    assert play(other, working_set, None, reading_model) == AT_MOST
