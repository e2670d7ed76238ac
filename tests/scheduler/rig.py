"""A scheduler over a real tree and pool, with a model that notices any wrong page; and what it must say."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from echo_model import EchoModel, make_pool, next_token

from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.invariants import check, check_idle
from deeproot.scheduler.messages import AddRequest, Hints, SamplingParams, TokenOutput
from deeproot.scheduler.scheduler import Scheduler


def make_scheduler(
    page_size: int = 4,
    num_pages: int = 32,
    seqs: int = 8,
    budget: int = 16,
    max_len: int = 96,
    overlap: bool = False,
    **options: Any,
) -> Scheduler:
    """Without more room for output than for the next token, unless `reserved_output` says so."""
    pool = make_pool(page_size, num_pages)
    options = {"reserved_output": 1} | options
    config = SchedulerConfig(seqs, budget, min(max_len, num_pages * page_size), overlap, **options)
    return Scheduler(config, RadixCache(page_size), pool, EchoModel(pool))


def request(
    rid: str, ids: list[int], max_tokens: int = 4, stop: tuple[int, ...] = (), **options: Any
) -> AddRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, stop_token_ids=stop, **options)
    return AddRequest(rid, np.asarray(ids, dtype=np.int32).tobytes(), sampling)


def alone(
    ids: list[int],
    max_tokens: int,
    max_len: int,
    stop: tuple[int, ...] = (),
    next_token: Callable[[list[int]], int] = next_token,
) -> tuple[list[int], str]:
    """What the model says to a prompt, with no engine in between."""
    out: list[int] = []
    while True:
        out.append(next_token(ids + out))
        if out[-1] in stop:
            return out, "stop"
        if len(out) == max_tokens or len(ids) + len(out) == max_len:
            return out, "length"


def run(scheduler: Scheduler, limit: int = 1000) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(limit):
        if not scheduler.has_work:
            check_idle(scheduler)
            return outputs
        for output in scheduler.step():
            outputs.setdefault(output.rid, []).append(output)
        check(scheduler)
    raise AssertionError("the scheduler does not come to an end")


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs if output.token_id is not None]


def hinted(message: AddRequest, session: str = "", owner: bytes = b"") -> AddRequest:
    return msgspec.structs.replace(message, hints=Hints(owner, session.encode()))
