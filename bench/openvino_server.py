"""OpenVINO GenAI's batching pipeline behind an OpenAI-compatible chat call, as a peer for `deeproot.bench.peers`.

    python -m bench.openvino_server FOLDER PORT [--threads 2] [--cache-gb 2]

For an environment of its own with `pip install openvino-genai`, from the root of the sources; nothing of deeproot is needed
there. FOLDER is the model as `optimum-cli export openvino` writes it. Greedy answers only, streamed, with usage; the prefix
cache is on. The pipeline gives tokens, and its own tokenizer turns each into text.
"""

import importlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .peer_http import Messages, parser_of, serve

_GREATEST_BATCH = 512
"""New tokens of a step; of 256 to 2,048 this gave OpenVINO its best figures."""


@dataclass
class Running:
    """An answer that the pipeline is asked for, or writes."""

    prompt: Any
    config: Any
    tokenizer: Any
    tokens: queue.Queue[int | None] = field(default_factory=queue.Queue)

    @property
    def prompt_tokens(self) -> int:
        return int(self.prompt.get_size())

    def pieces(self) -> Iterator[str]:
        while (token := self.tokens.get()) is not None:
            yield self.tokenizer.decode([token])


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
        self._tokenizer = self._pipeline.get_tokenizer()
        self._new: queue.Queue[Running] = queue.Queue()
        threading.Thread(target=self._step_for_ever, daemon=True).start()

    def answer(self, messages: Messages, max_tokens: int, *, ignore_eos: bool) -> Running:
        """See PeerEngine."""
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        prompt = self._tokenizer.encode(text, add_special_tokens=False).input_ids
        config = self._genai.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, ignore_eos=ignore_eos
        )
        config.eos_token_id = self._tokenizer.get_eos_token_id()
        running = Running(prompt, config, self._tokenizer)
        self._new.put(running)
        return running

    def _step_for_ever(self) -> None:
        number = 0
        running: dict[int, tuple[Any, Running]] = {}
        while True:
            while not running or not self._new.empty():
                new = self._new.get()
                number += 1
                running[number] = (self._pipeline.add_request(number, new.prompt, new.config), new)
            self._pipeline.step()
            for key, (handle, answer) in list(running.items()):
                while handle.can_read():
                    for generated in handle.read().values():
                        for token in generated.generated_ids:
                            answer.tokens.put(token)
                if handle.get_status() != self._genai.GenerationStatus.RUNNING:
                    answer.tokens.put(None)
                    del running[key]


def main() -> None:
    """Serve until killed."""
    parser = parser_of(__doc__)
    parser.add_argument("--cache-gb", type=int, default=2)
    args = parser.parse_args()
    serve(Engine(args.folder, args.threads, args.cache_gb), args.port)


if __name__ == "__main__":
    main()
