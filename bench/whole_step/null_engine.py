"""The engine's process with everything but the model: it writes a text that is given.

Started in place of `runtime.engine_process`, and the same program but for what computes a step: transport, scheduler, tree,
pool and loop are the product's.
"""

import time
from collections.abc import Callable

import torch

from deeproot.engine.batch import ForwardBatch, Int32Array, Sampled
from deeproot.engine.grammar import TokenBytes
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.engine.radix import RadixCache
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.engine_messages import EngineInfo
from deeproot.runtime.engine_process import main
from deeproot.runtime.engine_setup import EngineSide
from deeproot.runtime.options import EngineOptions
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.scheduler import Scheduler

TEXT = (
    "The file that you named has three functions, of which only the second reads its input twice. I would change it so "
    "that the parsed lines are kept in a list, and then write a test which opens the file once and counts the reads. "
)
"""What is written, over and over: plain English, each token of which is whole characters."""
STEP_S, ROW_S = 0.01, 0.0002
"""A step's time and, for each request in it, a time more: as long as a small model takes on a CPU. The processes are
measured by the time that they compute, not by this; without it the engine would be far ahead of whoever reads."""


class NullPending:
    """Tokens that are known already, but not before `ready`."""

    def __init__(self, token_ids: Int32Array, ready: float) -> None:
        self._token_ids = token_ids
        self._ready = ready

    def result(self) -> Sampled:
        time.sleep(max(0.0, self._ready - time.monotonic()))
        return Sampled(self._token_ids)


class NullForward:
    """Samples the token of a text that belongs to each position."""

    def __init__(self, text: Int32Array) -> None:
        self._text = text

    def launch(self, batch: ForwardBatch) -> NullPending:
        positions = batch.sampling.positions
        ready = time.monotonic() + STEP_S + ROW_S * len(positions)
        return NullPending(self._text[positions % len(self._text)], ready)


def load_null(
    options: EngineOptions,
    _token_bytes: Callable[[], TokenBytes],
    _on_progress: Callable[[int, int], None],
) -> EngineSide:
    """An engine over a pool without tensors that has room for all that may run."""
    tokenizer = ModelAssets.load(options.model).tokenizer
    length = options.max_model_len or 2048
    config = SchedulerConfig(
        options.max_num_seqs, options.max_num_batched_tokens, length, policy=options.schedule_policy
    )
    layout = KVLayout(0, 1, 1, options.page_size, torch.float32)
    pool = KVPool(layout, options.max_num_seqs * (length // options.page_size + 1))
    forward = NullForward(tokenizer.encode(TEXT, parse_special=False))
    scheduler = Scheduler(config, RadixCache(options.page_size), pool, forward)
    info = EngineInfo(length, options.max_num_seqs, tokenizer.vocab_size, "none", "none", "none")
    return EngineSide(scheduler, info)


if __name__ == "__main__":
    main(load_null)
