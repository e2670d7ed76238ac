"""`deeproot lint`: exit codes, text and JSON, logs that are nasty, and logs at an address."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from deeproot.runtime.cli import main

from .lint_logs import CHAT, add_timestamp, requests, turn_tools_round


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
        add_timestamp(body, i)
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
        add_timestamp(body, i)
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


def test_json_and_exact_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bpe: tokenizers.Tokenizer
) -> None:
    bodies = requests()
    for i, body in enumerate(bodies):
        turn_tools_round(body, i)
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
