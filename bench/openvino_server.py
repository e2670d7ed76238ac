"""OpenVINO GenAI's batching pipeline behind an OpenAI-compatible chat call, as a peer for `deeproot.bench.peers`.

    python bench/openvino_server.py FOLDER PORT [--threads 2] [--cache-gb 2]

For an environment of its own with `pip install openvino-genai`; nothing of deeproot is needed there. FOLDER is the model as
`optimum-cli export openvino` writes it. Greedy answers only, streamed, with usage; the prefix cache is on. The pipeline
gives tokens, and its own tokenizer turns each into text.
"""

import argparse
import importlib
import json
import os
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_GREATEST_BATCH = 512
"""New tokens of a step; of 256 to 2,048 this gave OpenVINO its best figures."""


class Engine:
    """The pipeline, which one thread steps while requests are running."""

    def __init__(self, folder: str, threads: int, cache_gb: int) -> None:
        self._genai: Any = importlib.import_module("openvino_genai")
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_seqs = 16
        scheduler.cache_size = cache_gb
        scheduler.max_num_batched_tokens = _GREATEST_BATCH
        settings = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": "bf16"}
        self._pipeline = self._genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", settings)
        self.tokenizer = self._pipeline.get_tokenizer()
        self._new: queue.Queue[Any] = queue.Queue()
        self._running: dict[int, tuple[Any, queue.Queue[int | None]]] = {}
        threading.Thread(target=self._step_for_ever, daemon=True).start()

    def tokens(self, prompt: Any, max_tokens: int, *, ignore_eos: bool) -> Iterator[int]:
        """The answer's tokens as they come."""
        config = self._genai.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, ignore_eos=ignore_eos
        )
        config.eos_token_id = self.tokenizer.get_eos_token_id()
        out: queue.Queue[int | None] = queue.Queue()
        self._new.put((prompt, config, out))
        while (token := out.get()) is not None:
            yield token

    def _step_for_ever(self) -> None:
        number = 0
        while True:
            while not self._running or not self._new.empty():
                prompt, config, out = self._new.get()
                number += 1
                self._running[number] = (self._pipeline.add_request(number, prompt, config), out)
            self._pipeline.step()
            for key, (handle, out) in list(self._running.items()):
                while handle.can_read():
                    for generated in handle.read().values():
                        for token in generated.generated_ids:
                            out.put(token)
                if handle.get_status() != self._genai.GenerationStatus.RUNNING:
                    out.put(None)
                    del self._running[key]


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """Answers `GET /v1/models` and `POST /v1/chat/completions`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "model"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = engine.tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True)
            prompt = engine.tokenizer.encode(text, add_special_tokens=False).input_ids
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            count = 0
            ignore_eos = bool(asked.get("ignore_eos"))
            for token in engine.tokens(prompt, asked["max_tokens"], ignore_eos=ignore_eos):
                count += 1
                self._send({"choices": [{"delta": {"content": engine.tokenizer.decode([token])}}]})
            usage = {"prompt_tokens": prompt.get_size(), "completion_tokens": count}
            self._send({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def _send(self, chunk: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a line a request would be timed."""

    return Handler


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("port", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cache-gb", type=int, default=2)
    args = parser.parse_args()
    engine = Engine(args.folder, args.threads, args.cache_gb)
    server = ThreadingHTTPServer(("127.0.0.1", args.port), handler(engine))
    print(f"Ready on 127.0.0.1:{args.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
