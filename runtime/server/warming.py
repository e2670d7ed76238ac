"""Prefixes computed ahead while nobody else wants the engine."""

import asyncio
import logging

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.client import EngineUnavailable, QueueFull
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.server.probing import ask_probe
from deeproot.runtime.server.state import Serving
from deeproot.runtime.warm_pieces import WarmPieces
from deeproot.scheduler.messages import AddRequest, Boundary
from deeproot.scheduler.questions import HoldAnswer, HoldQuestion

logger = logging.getLogger(__name__)

MAX_WARMINGS = 64
"""At a time."""


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
    shared = serving.shared.num_shared(ids.tobytes())
    pieces = WarmPieces(rid, ids, owner=tenant.owner, namespace=tenant.namespace, shared=shared)
    try:
        while (piece := pieces.next(await cached_tokens(serving, tenant, ids))) is not None:
            async with serving.warm_turn:  # one piece of all warmings at a time
                # Others' requests go before each piece, whatever they came for.
                await serving.client.wait_idle()
                await _compute(serving, piece)
        if lease_s > 0:
            kept = Boundary(len(ids), EvictionClass.LEAF, lease_s)
            await serving.client.ask(HoldQuestion(pieces.newest_rid, (kept,)), HoldAnswer)
    except (EngineUnavailable, QueueFull):
        logger.info("%s: not warmed to its end, since the engine takes nothing now", rid)


async def _compute(serving: Serving, piece: AddRequest) -> None:
    async with serving.client.generate([piece]) as outputs:
        async for _ in outputs:
            pass
