"""Prefixes computed ahead while nobody else wants the engine."""

import asyncio
import logging

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.client import EngineUnavailable, QueueFull
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.server.probing import ask_probe
from deeproot.runtime.server.state import Serving
from deeproot.scheduler.messages import AddRequest, Boundary, Hints, SamplingParams
from deeproot.scheduler.questions import HoldAnswer, HoldQuestion

logger = logging.getLogger(__name__)

PIECE_TOKENS = 256
"""Computed at a time: whoever comes meanwhile waits for no more than that."""
MAX_WARMINGS = 64
"""At a time."""
_LAST_PRIORITY = 2**31 - 1


def warm(serving: Serving, tenant: Tenant, ids: Int32Array, lease_s: float, rid: str) -> "asyncio.Task[None]":
    """Begin to compute a prompt in idle steps; then it is kept for `lease_s` seconds. Raises QueueFull."""
    if len(serving.warmings) >= MAX_WARMINGS:
        raise QueueFull(f"{MAX_WARMINGS} prefixes are being warmed: try again later.")
    task = asyncio.create_task(_warm(serving, tenant, ids, lease_s, rid))
    serving.warmings.add(task)
    task.add_done_callback(serving.warmings.discard)
    return task


async def cached_tokens(serving: Serving, tenant: Tenant, ids: Int32Array) -> int:
    """How many of a prompt's tokens are cached."""
    return (await ask_probe(serving, tenant, [ids])).cached_tokens[0]


async def _warm(serving: Serving, tenant: Tenant, ids: Int32Array, lease_s: float, rid: str) -> None:
    try:
        count, done = 0, 0
        shared = serving.shared.num_shared(ids.tobytes())
        # If others evict what is computed, or the engine fails on it, it is given up some time.
        most = 2 * (len(ids) // PIECE_TOKENS + 1)
        while count < most and (done := await cached_tokens(serving, tenant, ids)) < len(ids):
            async with serving.warm_turn:  # one piece of all warmings at a time
                # Others' requests go before each piece, whatever they came for.
                await serving.client.wait_idle()
                count += 1
                await _compute(serving, tenant, ids[: done + PIECE_TOKENS], shared, f"{rid}-{count}")
        if not count:  # all was there: a request finds it, and so gives it a name to be leased by
            await _compute(serving, tenant, ids, shared, f"{rid}-{(count := 1)}")
        if lease_s > 0:
            kept = Boundary(len(ids), EvictionClass.LEAF, lease_s)
            await serving.client.ask(HoldQuestion(f"{rid}-{count}", (kept,)), HoldAnswer)
    except (EngineUnavailable, QueueFull):
        logger.info("%s: not warmed to its end, since the engine takes nothing now", rid)


async def _compute(serving: Serving, tenant: Tenant, ids: Int32Array, shared: int, rid: str) -> None:
    """shared: of the whole prompt, of which `ids` is a part."""
    request = AddRequest(
        rid,
        ids.tobytes(),
        SamplingParams(max_tokens=1, temperature=0.0, seed=0, speculate=False),
        namespace=tenant.namespace,
        shared=shared,
        tenant=tenant.owner,
        priority=_LAST_PRIORITY,
        hints=Hints(tenant.owner),
    )
    async with serving.client.generate([request]) as outputs:
        async for _ in outputs:
            pass
