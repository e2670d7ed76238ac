"""transformers' `generate` behind an OpenAI-compatible chat call, as a peer for `deeproot.bench.peers`.

    python -m bench.transformers_server FOLDER PORT [--threads 2]

For any environment with `pip install transformers`, from the root of the sources; nothing of deeproot is needed there. FOLDER
is the model as Hugging Face keeps it. It runs in bfloat16 with torch's attention (sdpa) and the cache that `generate` takes by
itself, which grows; a static one took as much processor time. Greedy answers only, streamed, with usage. Requests that
come within `_GATHER_S` of each other are one batch, padded on the left; later ones wait until it is done. Nothing is kept from
one request to the next, since `generate` keeps nothing.
"""

import importlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .peer_http import Messages, parser_of, serve

_GATHER_S = 0.02
"""What a first token waits longer so that a batch can form."""
_LARGEST_BATCH = 16


@dataclass
class Request:
    """An answer that is waited for, or written."""

    messages: Messages
    max_tokens: int
    ignore_eos: bool
    tokenizer: Any
    prompt_tokens: int = 0
    tokens: queue.Queue[int | RuntimeError | None] = field(default_factory=queue.Queue)
    given: int = 0
    """Tokens so far."""
    done: bool = False

    def pieces(self) -> Iterator[str]:
        while (token := self.tokens.get()) is not None:
            if isinstance(token, RuntimeError):
                raise token
            yield self.tokenizer.decode([token])

    def take(self, token: int, ends: Sequence[int]) -> None:
        """What the batch sampled for this row; nothing once the answer is whole. ends: tokens that end an answer."""
        if self.done:
            return
        ended = token in ends and not self.ignore_eos
        if not ended:
            self.tokens.put(token)
            self.given += 1
        if ended or self.given == self.max_tokens:
            self.finish(None)

    def finish(self, with_what: RuntimeError | None) -> None:
        if not self.done:
            self.done = True
            if with_what is not None:
                self.tokens.put(with_what)
            self.tokens.put(None)


class Engine:
    """The model, with which one thread answers batch after batch."""

    def __init__(self, folder: str, gather_s: float = _GATHER_S) -> None:
        transformers = importlib.import_module("transformers")
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        load = transformers.AutoModelForCausalLM.from_pretrained
        self._model = load(folder, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        # Rows of a batch end one by one, which `after_step` sees to.
        ends = self._model.generation_config.eos_token_id
        self._ends = ends if isinstance(ends, list) else [ends]
        self._model.generation_config.eos_token_id = None
        self._gather_s = gather_s
        self._new: queue.Queue[Request] = queue.Queue()
        threading.Thread(target=self._answer_for_ever, daemon=True).start()

    def answer(self, messages: Messages, max_tokens: int, *, ignore_eos: bool) -> Request:
        """See PeerEngine."""
        request = Request(messages, max_tokens, ignore_eos, self._tokenizer)
        self._new.put(request)
        return request

    def _answer_for_ever(self) -> None:
        while True:
            batch = self._gathered()
            try:
                self._generate(batch)
                reason = "generate stopped early"
            except Exception as error:  # one batch's fault: the next may do
                reason = f"{type(error).__name__}: {error}"
            for request in batch:
                request.finish(RuntimeError(reason))

    def _gathered(self) -> list[Request]:
        batch = [self._new.get()]
        deadline = time.monotonic() + self._gather_s
        while len(batch) < _LARGEST_BATCH:
            try:
                batch.append(self._new.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return batch

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Request]) -> None:
        """Tokens go out as each step of `generate` has sampled them, by its own hook for when to stop."""
        texts = [
            self._tokenizer.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True)
            for request in batch
        ]
        prompts = self._tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        for request, mask in zip(batch, prompts.attention_mask, strict=True):
            request.prompt_tokens = int(mask.sum())

        def after_step(ids: torch.Tensor, scores: object) -> torch.Tensor:
            for request, token in zip(batch, ids[:, -1].tolist(), strict=True):
                request.take(token, self._ends)
            return torch.tensor([request.done for request in batch])

        self._model.generate(
            input_ids=prompts.input_ids,
            attention_mask=prompts.attention_mask,
            max_new_tokens=max(request.max_tokens for request in batch),
            do_sample=False,
            pad_token_id=self._tokenizer.pad_token_id,
            stopping_criteria=[after_step],
        )


def main() -> None:
    """Serve until killed."""
    args = parser_of(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    serve(Engine(args.folder), args.port)


if __name__ == "__main__":
    main()
