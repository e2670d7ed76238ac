"""Whatever is said, chosen, searched and delegated: each call extends the one before it."""

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import deferred, record
from deeproot.runtime.context.branches.child import alone, fork
from deeproot.runtime.context.branches.report import join
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.few_shot import Example, FewShotSet, show
from deeproot.runtime.context.skills.skill import Skill, catalogue
from deeproot.runtime.context.skills.use import SKILL_TOOL, answer
from deeproot.runtime.context.status import todo
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.environment import Environment
from deeproot.runtime.context.status.limits import CallLimit
from deeproot.runtime.context.status.mode import Mode
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.status.time_sense import TimeSense
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.thinking import Thinking
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet

from .agent_turns import TAIL, TOOLS, call, extends, linted, whole_exchanges
from .test_deferred import LATER

SKILLS = (
    Skill("slides", "slides are made", "Write html first."),
    Skill("pdf", "a PDF is read", "Use pypdf."),
)
STEPS = (
    "call",
    "fail",
    "parallel",
    "user",
    "state",
    "slides",
    "pdf",
    "none",
    "find",
    "list",
    "delegate",
    "file",
)
MakeSet = Callable[[str, Thinking], WorkingSet]


@pytest.fixture(scope="module")
def make_any_set(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> MakeSet:
    segments = SegmentTokenizer(tok)

    def make(template: str, thinking: Thinking) -> WorkingSet:
        return WorkingSet(
            policy=ThreeZones(60_000, keep_turns=2),
            tokenizer=segments,
            template=make_template(template),
            techniques=Techniques.all(),
            thinking=thinking,
        )

    return make


def act(log: EventLog, step: str, i: int, history: StatusBar) -> None:
    """One turn of the model, its calls answered."""
    calls = {
        "slides": ("use_skill", {"name": "slides"}),
        "pdf": ("use_skill", {"name": "pdf"}),
        "none": ("use_skill", {"name": "poems"}),
        "find": ("tool_search", {"query": ["weather", "mail room", "calendar", "zzz"][i % 4]}),
        "list": (todo.REWRITE, {"items": [f"step {i}", "test"]}),
    }
    if step == "user":
        record.assistant(log, f"Done with {i}.", reasoning="I rest.")
        record.user(log, f"And {i}?")
    elif step == "file":
        call(log, "read_file", {"path": f"{i}.py"}, "see below", reasoning="I read it.")
        record.file_version(log, f"file:///{i}.py", f"x = {i}\n" * 5)
    elif step == "state":
        record.state(log, "branch", f"b{i % 3}")
    elif step in ("call", "fail"):
        call(log, "bash", {"n": i % 3}, f"output {i}", exit_code=step == "fail", reasoning="I weigh it.")
    elif step == "parallel":
        made = [
            {
                "id": f"{i}{side}",
                "type": "function",
                "function": {"name": "phone_call", "arguments": '{"to": "X"}'},
            }
            for side in "ab"
        ]
        record.assistant(log, "both", tool_calls=made, reasoning="Both.")
        for side in "ab":
            record.tool_result(log, f"{i}{side}", f"busy {side}", name="phone_call")
    elif step == "delegate":
        function = {"name": "delegate", "arguments": "{}"}
        record.assistant(log, "", tool_calls=[{"id": f"d{i}", "type": "function", "function": function}])
        child = fork(log, "Find it.") if i % 2 else alone(log, "Find it.")
        record.assistant(child, f"It is in {i}.py.")
        join(log, f"d{i}", child, len)
    else:
        name, arguments = calls[step]
        function = {"name": name, "arguments": json.dumps(arguments)}
        record.assistant(log, "", tool_calls=[{"id": f"s{i}", "type": "function", "function": function}])
        if name == "use_skill":
            answer(log, f"s{i}", function, SKILLS)
        elif name == "tool_search":
            deferred.answer(log, f"s{i}", function)
        else:
            history.history.read()
            todo.answer(log, f"s{i}", function, history.history.todo)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=10),
    mode=st.sampled_from(list(Mode)),
    way=st.sampled_from(
        [
            ("qwen2.5-instruct", Thinking.TEMPLATE),
            ("qwen3", Thinking.TEMPLATE),
            ("qwen3", Thinking.SCRATCH),
            ("smollm2", Thinking.TEMPLATE),
        ]
    ),
)
@example(steps=["file", "state", "call"], mode=Mode.APPEND, way=("qwen2.5-instruct", Thinking.TEMPLATE))
def test_every_call_extends_the_one_before(
    make_any_set: MakeSet, steps: list[str], mode: Mode, way: tuple[str, Thinking]
) -> None:
    now = iter(range(1_700_000_000, 1_800_000_000))
    log = EventLog.memory(clock=lambda: next(now) * 10**9)
    working_set = make_any_set(*way)
    limits = [CallLimit("phone_call", 3, "to")]
    bar = StatusBar(log, techniques=Techniques.all(), limits=limits, time_sense=TimeSense(30), mode=mode)
    record.policy(log, "You are careful.")
    record.policy(log, catalogue(SKILLS))
    record.policy(log, bar.manual())
    record.constraint(log, "Never edit vendor/.")
    record.tools(log, [*TOOLS, SKILL_TOOL, *todo.LIST_TOOLS, *LATER])
    show(log, FewShotSet("bug", (Example("It fails.", "Title: it fails"),)))
    record.user(log, "Make the tests pass.")
    contexts: list[Context] = []
    drops_thinking = []
    for i, step in enumerate(steps):
        bar.update(now_ns=1_700_000_000 * 10**9 + i * 4 * 10**9, environment=Environment("/repo"))
        contexts.append(working_set.assemble(log))
        act(log, step, i, bar)
        drops_thinking.append(way == ("qwen3", Thinking.TEMPLATE) and step == "user")
    tail = TAIL if mode is Mode.REPLACE else TAIL[1:]
    for (earlier, later), dropped in zip(itertools.pairwise(contexts), drops_thinking, strict=False):
        # Where a template drops thinking when the user speaks, it does: the one break that is not ours.
        assert dropped or extends(earlier, later, tail)
    assert all(context.report.lint == () for context in contexts)
    assert linted(contexts).breaks == ()
    assert all(whole_exchanges(context) for context in contexts)
