"""The linter and `deeproot lint`: what is volatile, what broke the prefix, where, and what it cost."""

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from deeproot.runtime.cli import main
from deeproot.runtime.context.lint_log import LintResult, Unit, _Calls, lint_requests, units_of
from deeproot.runtime.context.request_log import RequestLogError, read_requests

TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"a": 1, "b": 2}}} for n in ("one", "two")
]
CHAT = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "gone"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "one", "arguments": '{"a": 1, "b": 2}'}}


def requests(turns: int = 4) -> list[dict[str, Any]]:
    """A well-kept session: each call extends the one before."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are careful. " * 20},
        {"role": "user", "content": "Fix it."},
    ]
    made = []
    for i in range(turns):
        made.append({"model": "m", "messages": copy.deepcopy(messages), "tools": copy.deepcopy(TOOLS)})
        messages.append(
            {
                "role": "assistant",
                "content": f"Step {i}",
                "tool_calls": [CALL],
                "reasoning_content": "thinking " * 5,
            }
        )
        messages.append({"role": "tool", "tool_call_id": "c1", "content": f"output {i} " * 10})
    return made


def lint(bodies: list[dict[str, Any]]) -> LintResult:
    return lint_requests(read_requests(json.dumps(body) for body in bodies), len)


def test_a_well_kept_session_is_clean() -> None:
    result = lint(requests())
    assert result.breaks == ()
    assert (result.requests, result.sessions) == (4, 1)
    assert 0.5 < result.reusable_tokens / result.total_tokens < 1


def _timestamp(body: dict[str, Any], i: int) -> None:
    body["messages"][0]["content"] = f"It is 2025-01-31 10:00:0{i}. " + body["messages"][0]["content"]


def _uuid(body: dict[str, Any], i: int) -> None:
    body["messages"][0]["content"] += f" request 0f8fad5b-d9cb-469f-a165-70867728950{i}"


def _counter(body: dict[str, Any], i: int) -> None:
    body["messages"][0]["content"] = f"Turn {i} of 9. " + body["messages"][0]["content"]


def _tool_order(body: dict[str, Any], i: int) -> None:
    body["tools"] = body["tools"][:: -1 if i % 2 else 1]


def _tool_change(body: dict[str, Any], i: int) -> None:
    body["tools"][1]["function"]["description"] = f"does {'x' * i}"


def _thinking(body: dict[str, Any], i: int) -> None:
    for message in body["messages"][:-2]:
        message.pop("reasoning_content", None)


def _spelling(body: dict[str, Any], i: int) -> None:
    if i == 3:
        for message in body["messages"]:
            if message.get("tool_calls"):
                message["tool_calls"] = [{**CALL, "function": {"name": "one", "arguments": '{"a":1,"b":2}'}}]


def _window(body: dict[str, Any], i: int) -> None:
    if i == 3:
        del body["messages"][2:4]


def _edit(body: dict[str, Any], i: int) -> None:
    if i == 3:
        body["messages"][3]["content"] = "[cleared]"


def _key_order(body: dict[str, Any], i: int) -> None:
    if i == 2:
        body["messages"] = [dict(reversed(m.items())) for m in body["messages"]]


@pytest.mark.parametrize(
    ("change", "cause", "where"),
    [
        (_timestamp, "timestamp", "messages[0] (system)"),
        (_uuid, "uuid", "messages[0] (system)"),
        (_counter, "counter", "messages[0] (system)"),
        (_tool_order, "tool order", "tools"),
        (_tool_change, "tools changed", "tools"),
        (_thinking, "dropped thinking", "messages[4] (assistant)"),
        (_spelling, "spelled otherwise", "messages[2] (assistant)"),
        (_window, "removed, added or moved message", "messages[2] (assistant)"),
        (_edit, "changed", "messages[3] (tool)"),
        (_key_order, "spelled otherwise", "messages[0] (system)"),
    ],
)
def test_each_break_is_named_and_priced(
    change: Callable[[dict[str, Any], int], None], cause: str, where: str
) -> None:
    bodies = requests()
    for i, body in enumerate(bodies):
        change(body, i)
    result = lint(bodies)
    assert result.breaks
    found = result.breaks[-1]
    assert found.cause == cause
    assert found.where.startswith(where + ", character ")
    # The price: what the earlier call had behind the break.
    earlier = bodies[found.since - 1]
    order = [earlier["messages"][0], earlier["tools"], *earlier["messages"][1:]]
    spelled = "".join(json.dumps(value, ensure_ascii=False) for value in order)
    assert found.kept_tokens + found.cost_tokens == len(spelled)
    assert found.before != found.after
    assert spelled[found.kept_tokens] in found.before


def test_a_changing_tail_is_no_break() -> None:
    bodies = requests()
    for i, body in enumerate(bodies):
        body["messages"].append({"role": "user", "content": f"<agent_status>time: 10:00:0{i}</agent_status>"})
    assert lint(bodies).breaks == ()


def test_sessions_are_told_apart() -> None:
    one, other = requests(), requests()
    for body in other:
        body["messages"][1]["content"] = "Something else."
    mixed = [body for pair in zip(one, other, strict=True) for body in pair]
    result = lint(mixed)
    assert (result.sessions, result.breaks) == (2, ())
    for i, body in enumerate(mixed):
        body["metadata"] = {"session_id": "same" if i < 2 else "another"}
    assert lint(mixed).sessions == 2
    # A branch that goes back to an earlier call is compared with that one.
    assert lint([*one, one[1]]).breaks == ()


@pytest.mark.parametrize("wrapper", ["body", "request", "params"])
def test_wrapped_requests_are_read(wrapper: str) -> None:
    line = json.dumps(
        {
            "custom_id": "x",
            wrapper: requests(1)[0],
            "response": {
                "body": {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
            },
        }
    )
    (found,) = read_requests([line, "", "  "])
    assert (found.model, found.prompt_tokens, found.cached_tokens) == ("m", 9, 4)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: not an object"),
        ("{}", "line 1: messages is missing"),
        ('{"messages": [{"content": "x"}]}', "line 1: messages is missing or no list of objects with a role"),
        ('{"messages": [], "tools": {}}', "line 1: tools is no list"),
        ("", "the log has no request"),
    ],
)
def test_bad_lines_are_named(line: str, says: str) -> None:
    with pytest.raises(RequestLogError, match=says):
        read_requests([line])


def run(argv: list[str]) -> int:
    return main(["lint", *argv])


def write(path: Path, bodies: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(body) for body in bodies))
    return str(path)


def test_exit_codes_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([write(tmp_path / "good.jsonl", requests())]) == 0
    assert "0 break(s)" in capsys.readouterr().out
    bodies = requests()
    for i, body in enumerate(bodies):
        _timestamp(body, i)
    bad = write(tmp_path / "bad.jsonl", bodies)
    assert run([bad]) == 1
    out = capsys.readouterr().out
    assert "line 2: timestamp in messages[0] (system), character 55 (root), against line 1: about " in out
    assert "10:00:00" in out
    assert "10:00:01" in out
    assert run([bad, "--min-tokens", "100000"]) == 0
    capsys.readouterr()
    assert run([str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    (tmp_path / "broken.jsonl").write_text("{")
    assert run([str(tmp_path / "broken.jsonl")]) == 2
    assert "line 1: not JSON" in capsys.readouterr().err
    assert run([bad, "--tokenizer", bad]) == 2


def test_the_real_command(tmp_path: Path) -> None:
    """As CI runs it: its own process, the log through a pipe, nothing heavy loaded."""
    bodies = requests()
    for i, body in enumerate(bodies):
        _timestamp(body, i)
    log = "\n".join(json.dumps(body) for body in bodies)
    said = [
        subprocess.run(
            [Path(sys.executable).with_name("deeproot"), "lint", *arguments],
            input=given,
            capture_output=True,
            check=False,
            text=True,
        )
        for arguments, given in (
            (["-"], log),
            (["-", "--min-tokens", "9999"], log),
            (["-"], ""),
            (["-", "--min-tokens", "-1"], log),
        )
    ]
    assert [done.returncode for done in said] == [1, 0, 2, 2]
    assert said[0].stdout.count("timestamp in messages[0] (system)") == 3
    assert "the log has no request" in said[2].stderr
    assert "--min-tokens: must be at least 0" in said[3].stderr
    loaded = (
        "import sys; from deeproot.runtime.cli import main; main(['lint', '/dev/null']); "
        "print(sorted({'torch', 'triton', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, check=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"[" * 100_000, "cannot be read as JSON"),
        (
            b'{"messages": [{"role": "user", "content": ' + b"1" * 5000 + b"}]}",
            "line 1: cannot be read as JSON",
        ),
        (b'{"messages": [{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]}", None),
        (b"\xff\xfe", "can't decode byte 0xff"),
    ],
)
def test_nasty_logs_are_refused_in_words(
    line: bytes, says: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(line)
    assert run([str(log)]) == (0 if says is None else 2)
    assert says is None or says in capsys.readouterr().err


def test_what_a_log_says_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line separators inside of strings end no line; controls and lone surrogates are shown, not sent."""
    bodies = [
        {"messages": [{"role": "\x1b[2J\ud800", "content": f"{i} \u2028\x1b]0;x\x07\udfff"}] * 2 + CHAT}
        for i in (1, 2)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text(
        "\ufeff" + "\n".join(json.dumps(b, ensure_ascii=False) for b in bodies), "utf-8", "surrogatepass"
    )
    assert run([str(log)]) == 2  # surrogates are no UTF-8
    log.write_text("\ufeff" + "\n".join(json.dumps(b) for b in bodies).replace("\\u2028", "\u2028"), "utf-8")
    assert run([str(log)]) == 1
    assert run([str(log), "--json"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    out.encode("utf-8")


def test_a_long_session_takes_time_in_proportion() -> None:
    """Work is counted in comparisons of whole messages: as many as the log has, not calls times calls."""
    log = read_requests(json.dumps(body) for body in requests(120))
    units = [units_of(request) for request in log]
    compared = 0

    class Text(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    calls = _Calls()
    for request, own in zip(log, units, strict=True):
        copies = [Unit(u.where, u.zone, Text(u.text), u.value) for u in own]
        best = calls.best(copies)
        assert best is None or best[2] == len(own) - 2
        calls.add(request, copies)
    assert compared <= 2 * sum(map(len, units))


def test_json_and_exact_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bpe: tokenizers.Tokenizer
) -> None:
    bodies = requests()
    for i, body in enumerate(bodies):
        _tool_order(body, i)
    log = write(tmp_path / "bad.jsonl", bodies)
    bpe.save(str(tmp_path / "tokenizer.json"))
    assert run([log, "--json", "--tokenizer", str(tmp_path / "tokenizer.json")]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {found["cause"] for found in told["breaks"]} == {"tool order"}
    assert told["lost_tokens"] == sum(found["cost_tokens"] for found in told["breaks"])
    assert told["lost_dollars"] == pytest.approx(told["lost_tokens"] * 2.7e-6)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a log on a real HTTP server."""
    body = "\n".join(json.dumps(b) for b in requests()).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/log.jsonl" else 404)
            self.end_headers()
            if self.path == "/log.jsonl":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def test_reads_from_an_address(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([f"{served}/log.jsonl"]) == 0
    assert run([f"{served}/other"]) == 2
    assert "cannot be fetched" in capsys.readouterr().err
