"""An OpenAI-compatible server on a free port whose model follows a script, in a thread of the test's process.

Which reply a request gets is told by how many replies its conversation holds already, so that a run that was stopped and
goes on is answered as the model would have answered it; or, where replies are archived or evicted, by the order of requests.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A call in a reply. `id` empty: `turn`-`number`."""

    name: str
    arguments: dict[str, Any] | str
    id: str = ""

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Reply:
    """What the model says. `drop_after`: the connection is closed behind that many calls. `between`: called behind each
    call, with its number. `usage` False: the server does not count."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    reasoning: str = ""
    drop_after: int | None = None
    between: Callable[[int], None] = lambda number: None
    first: Callable[[], None] = lambda: None
    """Called before anything is said."""
    usage: bool = True
    cached: bool = True
    """Whether the usage says how many tokens were cached."""
    finish: str = ""
    piece: int = 7
    """Characters of arguments in one chunk."""


@dataclass(frozen=True)
class Refusal:
    """An HTTP error in place of a reply."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


Entry = Reply | Refusal | Sequence[Reply | Refusal]
Script = Sequence[Entry]
"""By turn; a list is for one turn, gone through from request to request, its last element again and again."""


class ScriptedServer(ThreadingHTTPServer):
    """`bodies`: every request's body as it came. `in_order`: each new request gets the next reply, whatever it holds."""

    daemon_threads = True

    def __init__(self, script: Script, *, in_order: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = list(script)
        self.bodies: list[bytes] = []
        self._turns: dict[bytes, int] | None = {} if in_order else None
        self.tries: dict[int, int] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    def reply_to(self, body: bytes) -> tuple[int, Reply | Refusal]:
        with self.lock:
            self.bodies.append(body)
            if self._turns is None:
                turn = sum(message["role"] == "assistant" for message in json.loads(body)["messages"])
            else:
                turn = self._turns.setdefault(body, len(self._turns))
            entry = self.script[turn]
            if isinstance(entry, Reply | Refusal):
                return turn, entry
            tried = self.tries.get(turn, 0)
            self.tries[turn] = tried + 1
            return turn, entry[min(tried, len(entry) - 1)]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave as they like."""


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "scripted", "max_model_len": 32768}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        turn, reply = self.server.reply_to(body)
        if isinstance(reply, Refusal):
            self._json(reply.status, {"error": {"message": reply.message}}, reply.headers)
            return
        reply.first()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in (reply.reasoning, reply.text):
            name = "reasoning_content" if piece is reply.reasoning else "content"
            if piece:
                self._delta({name: piece})
        for number, call in enumerate(reply.calls):
            self._call(turn, number, call, reply.piece)
            reply.between(number)
            if reply.drop_after == number + 1:
                return
        if reply.drop_after == 0:
            return
        self._chunk(
            {
                "choices": [
                    {"delta": {}, "finish_reason": reply.finish or ("tool_calls" if reply.calls else "stop")}
                ]
            }
        )
        if reply.usage:
            details = {"prompt_tokens_details": {"cached_tokens": len(body) // 8}} if reply.cached else {}
            usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 10, **details}
            self._chunk({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _call(self, turn: int, number: int, call: ToolCall, size: int) -> None:
        start = {"index": number, "id": call.id or f"c{turn}-{number}", "type": "function"}
        self._delta({"tool_calls": [{**start, "function": {"name": call.name, "arguments": ""}}]})
        for at in range(0, len(call.text), size):
            self._delta(
                {"tool_calls": [{"index": number, "function": {"arguments": call.text[at : at + size]}}]}
            )

    def _delta(self, delta: dict[str, Any]) -> None:
        self._chunk({"choices": [{"delta": delta, "finish_reason": None}]})

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def scripted_server(*script: Entry, in_order: bool = False) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script, in_order=in_order)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
