"""Streaming clients that cost as little as they can: they count tokens and look at nothing else."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

_TOKEN = b'"delta":{"content":"'
"""Begins a token's text in a chunk; the one that names the role has another field first."""


class Streams:
    """Chats that are being streamed, each over a connection of its own."""

    def __init__(self, count: int, num_tokens: int) -> None:
        """num_tokens: how many each asks for."""
        self._num_tokens = num_tokens
        self.received = [0] * count
        """Tokens, by stream."""
        self.failures: list[str] = []

    @contextlib.asynccontextmanager
    async def open(self, port: int) -> AsyncIterator[None]:
        """Ask for all of them; they are read while the context is open, and left after it."""
        tasks = [asyncio.create_task(self._read(port, i)) for i in range(len(self.received))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def all_have(self, num_tokens: int) -> None:
        """Return when every stream has brought so many tokens. Raises RuntimeError if one fails."""
        while min(self.received) < num_tokens:
            if self.failures:
                raise RuntimeError(f"a stream ended too soon: {self.failures[0]}")
            await asyncio.sleep(0.01)

    async def _read(self, port: int, index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(_request(index, self._num_tokens))
            tail = b""
            while data := await reader.read(1 << 16):
                text = tail + data
                self.received[index] += text.count(_TOKEN)
                tail = text[-len(_TOKEN) + 1 :]
                if b"data: [DONE]" in text:
                    break
            if self.received[index] < self._num_tokens:
                self.failures.append(text[-300:].decode(errors="replace"))
        finally:
            writer.close()


def _request(index: int, num_tokens: int) -> bytes:
    message = {
        "role": "user",
        "content": f"Number {index}: tell me what you would change in that file, and why.",
    }
    body = json.dumps({"messages": [message], "max_tokens": num_tokens, "temperature": 0, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n{body}".encode()
