"""Assembly: equality with the template, messages for any server, what each segment is."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

from deeproot.runtime.context import record
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.envelope import Defence
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.openai_messages import import_messages
from deeproot.runtime.context.pipeline_filter import PipelineFilter
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.segments import Channel, Zone
from deeproot.runtime.context.swe_agent import import_trajectory
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import GENERATION_PROMPT, WorkingSet

from .short_logs import short_log
from .template_names import SPECIALS, TEMPLATES, WITH_TOOLS

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_the_templates_text(
    name: str, tok: TokenizersAdapter, bpe: tokenizers.Tokenizer, make_template: Callable[[str], ChatTemplate]
) -> None:
    template = make_template(name)
    made = WorkingSet(policy=AppendOnly(), tokenizer=tok, template=template)
    context = made.assemble(short_log("foo()\n1234", tools=name in WITH_TOOLS))
    # The text that any other server makes of the messages, and its ids.
    messages: list[dict[str, Any]] = json.loads(json.dumps(context.messages))
    for call in [
        call
        for message in messages
        for call in message.get("tool_calls", ())
        if name != "deepseek-r1-distill"
    ]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    (text,), _ = render_jinja_template(
        [messages],
        chat_template=template.source,
        add_generation_prompt=True,
        **SPECIALS,
    )
    whole = bpe.encode(text, add_special_tokens=False).ids
    assert bpe.decode(context.token_ids.tolist(), skip_special_tokens=False) == text
    assert (context.token_ids.tolist() == whole) == (not context.report.unverified_joints)
    assert "Never edit vendor/." in text
    assert context.report.not_rendered == ()


def test_boundaries_cover_the_prompt(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]
) -> None:
    context = WorkingSet(
        policy=ThreeZones(4000), tokenizer=tok, template=make_template("qwen2.5-instruct")
    ).assemble(short_log("x"))
    assert context.boundaries[0].start == 0
    assert context.boundaries[-1].end == context.token_ids.size
    assert context.boundaries[-1].key == GENERATION_PROMPT
    assert [b.start for b in context.boundaries[1:]] == [b.end for b in context.boundaries[:-1]]
    zones = [b.zone for b in context.boundaries]
    assert zones == sorted(zones, key=list(Zone).index)
    assert (
        sum(s.token_ids.size for s in context.segments)
        + context.boundaries[-1].end
        - context.boundaries[-1].start
        == context.token_ids.size
    )


def test_messages_are_openai_s_and_an_assistant_s_goes_back_unchanged(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], log: EventLog
) -> None:
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b":1, "a" :2}'}}
        ],
        "refusal": None,
    }
    tools = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in ("zeta", "alpha")]
    import_messages(
        log,
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            said,
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ],
        tools=tools,
    )
    made = WorkingSet(
        policy=AppendOnly(), tokenizer=tok, template=make_template("qwen2.5-instruct"), defence=Defence.NONE
    )
    context = made.assemble(log)
    assert list(context.messages) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        said,
        {"role": "tool", "content": "r", "tool_call_id": "c1"},
    ]
    assert [t["function"]["name"] for t in context.tools] == ["alpha", "zeta"]
    body = context.request(model="m", temperature=0)
    assert (body["model"], body["messages"], body["tools"]) == (
        "m",
        list(context.messages),
        list(context.tools),
    )
    json.dumps(body)


def test_what_each_segment_is(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], log: EventLog
) -> None:
    record.policy(log, "p")
    record.tools(log, [{"type": "function", "function": {"name": "f"}}])
    record.user(log, "task")
    record.assistant(
        log, "a", tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    )
    record.tool_result(log, "c", b"\xff\xfe raw", exit_code=0)
    record.file_version(log, "file:///a.py", "print()")
    record.diagnostic(log, "a.py:1: error", call_id="c")
    record.state(log, "cwd", "/w</agent_status>")
    made = WorkingSet(policy=ThreeZones(2000), tokenizer=tok, template=make_template("qwen2.5-instruct"))
    context = made.assemble(log)
    kinds = {s.key: (s.zone, int(s.authority), s.channel) for s in context.segments}
    assert kinds == {
        "e1": (Zone.ROOT, 0, Channel.INSTRUCTION),
        "warning": (Zone.ROOT, 0, Channel.INSTRUCTION),
        "e3": (Zone.ROOT, 0, Channel.INSTRUCTION),
        "e4": (Zone.LEAF, 2, Channel.OBSERVATION),
        "e5": (Zone.LEAF, 2, Channel.OBSERVATION),
        "e7": (Zone.LEAF, 2, Channel.OBSERVATION),
        "e6": (Zone.LEAF, 1, Channel.ARTIFACT),
        "status": (Zone.LEAF, 1, Channel.OBSERVATION),
        "e2": (Zone.ROOT, 0, Channel.INSTRUCTION),
    }
    sources = {s.key: s.source for s in context.segments}
    assert log.payload(sources["e5"].payload_hash) == b"\xff\xfe raw"
    assert (sources["e5"].uri, sources["e5"].trust) == ("tool://f/c", "untrusted")
    assert sources["e5"].read_at == "2023-11-14T22:13:24Z"
    assert 'read_at="2023-11-14T22:13:24Z"' in context.messages[3]["content"]
    assert (sources["e6"].uri, sources["e6"].trust) == ("file:///a.py", "verified")
    tail = context.messages[-1]["content"]
    assert tail.endswith("<agent_status>\ncwd: /w&lt;/agent_status&gt;\n</agent_status>")
    report = str(context.report)
    assert "tool schemas, sorted and frozen" in report
    assert "unverified" not in report


def test_superseded_reads_of_the_pydicom_run_are_found(tok: TokenizersAdapter, log: EventLog) -> None:
    """Two views that a later edit made stale: step 4 of the handler, edited in step 8, and the script that step 10 removed."""
    document = json.loads((HERE / "fixtures" / "sweagent_pydicom_1458.traj.json").read_text())
    events = import_trajectory(log, document, start_ns=0)
    stage_filter = PipelineFilter(len)
    for event in events:
        if event.kind is EventKind.TOOL_RESULT:
            stage_filter.add(event, log.text(event), None)
    found = {
        log.event(s.seq).data["index"]: (log.event(s.since).data["index"], s.text)
        for s in stage_filter.take_superseded()
    }
    handler = "/pydicom__pydicom/pydicom/pixel_data_handlers/numpy_handler.py"
    assert found[4][0] == 8
    assert handler in found[4][1]
    assert found[1][0] == 10
    assert all("stale view of" in text for _, text in found.values())


@pytest.mark.parametrize(("command", "extracted"), [("pytest -q", True), ("cat report.txt", False)])
def test_long_test_output_is_staged_as_its_diagnostics(
    command: str,
    extracted: bool,
    tok: TokenizersAdapter,
    make_template: Callable[[str], ChatTemplate],
    log: EventLog,
) -> None:
    output = (HERE / "fixtures" / "tool_outputs" / "second_pytest.txt").read_text(encoding="utf-8")
    record.user(log, "Run it.")
    call = {"name": "bash", "arguments": json.dumps({"command": command})}
    record.assistant(log, "", tool_calls=[{"id": "c1", "type": "function", "function": call}])
    result = record.tool_result(log, "c1", output, exit_code=1)
    made = WorkingSet(
        policy=AppendOnly(), tokenizer=tok, template=make_template("qwen2.5-instruct"), result_tokens=None
    )
    context = made.assemble(log)
    segment = next(s for s in context.report.segments if s.key == f"e{result}")
    assert any(note.startswith("extraction (pytest): ") for note in segment.notes) == extracted
    raw = tok.encode(output, parse_special=False).size
    assert (segment.tokens < raw / 2) == extracted
    staged = next(m["content"] for m in context.messages if m["role"] == "tool")
    for line in output.splitlines():
        if line.startswith("FAILED "):
            assert line.split(" - ")[0].removeprefix("FAILED ") in staged
    assert log.payload(segment.payload_hash).decode() == output


def test_over_budget_is_said_with_numbers(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]
) -> None:
    log = short_log("word " * 3000)
    made = WorkingSet(
        policy=ThreeZones(1500), tokenizer=tok, template=make_template("qwen2.5-instruct"), result_tokens=None
    )
    with pytest.raises(BudgetError, match=r"has \d+ tokens for a budget of 1500"):
        made.assemble(log)
    short = WorkingSet(
        policy=ThreeZones(1500), tokenizer=tok, template=make_template("qwen2.5-instruct"), result_tokens=400
    )
    context = short.assemble(log)
    assert context.token_ids.size <= 1500
    noted = next(s for s in context.report.segments if s.key == "e5")
    assert noted.notes[0].startswith("shortened from ")
    assert log.payload(noted.payload_hash) == b"word " * 3000


def test_importing_it_brings_no_heavy_library() -> None:
    modules = sorted(
        p.stem
        for p in Path(sys.modules[WorkingSet.__module__].__file__ or "").parent.glob("*.py")
        if p.stem != "__init__"
    )
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module('deeproot.runtime.context.' + name)\n"
        "print([m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
