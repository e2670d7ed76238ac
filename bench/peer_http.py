"""The little of OpenAI's HTTP API that a peer without a server of its own needs to be measured.

Nothing of deeproot is needed here: peers run in environments of their own, from the root of the sources as
`python -m bench.openvino_server`.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

Messages = Sequence[dict[str, str]]


class Answer(Protocol):
    """A greedy answer on its way. Each has a thread of its own that waits for it."""

    @property
    def prompt_tokens(self) -> int:
        """Known once the first token has come."""
        ...

    def pieces(self) -> Iterator[str]:
        """The text of each token as it comes. Raises RuntimeError, with the reason, for one that fails."""
        ...


class PeerEngine(Protocol):
    """A model that answers."""

    def answer(self, messages: Messages, max_tokens: int, *, ignore_eos: bool) -> Answer:
        """Called from several threads at once."""
        ...


def handler(engine: PeerEngine) -> type[BaseHTTPRequestHandler]:
    """Answers `GET /v1/models` and `POST /v1/chat/completions`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._whole(200, {"data": [{"id": "model"}]})

        def do_POST(self) -> None:
            try:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages, max_tokens = asked["messages"], int(asked["max_tokens"])
                ignore_eos = bool(asked.get("ignore_eos"))
            except (KeyError, TypeError, ValueError) as error:
                reason = f"give JSON with messages and max_tokens ({type(error).__name__}: {error})"
                self._whole(400, {"error": {"message": reason}})
                return
            answer = engine.answer(messages, max_tokens, ignore_eos=ignore_eos)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self._stream(answer)
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def _stream(self, answer: Answer) -> None:
            count = 0
            try:
                for text in answer.pieces():
                    count += 1
                    self._send({"choices": [{"delta": {"content": text}}]})
            except RuntimeError as error:
                self._send({"error": {"message": str(error)}})
                return
            usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": count}
            self._send({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})

        def _send(self, chunk: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()

        def _whole(self, status: int, said: dict[str, Any]) -> None:
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a line a request would be timed."""

    return Handler


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows the folder, the port and the number of threads."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("port", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser


def serve(engine: PeerEngine, port: int) -> None:
    """Until killed, on 127.0.0.1."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler(engine))
    print(f"Ready on 127.0.0.1:{port}", flush=True)
    server.serve_forever()
