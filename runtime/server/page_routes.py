"""The page at `/`, and what it shows: the prefix tree and the engine's figures."""

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.server.errors import unavailable
from deeproot.runtime.server.service_routes import json_response
from deeproot.runtime.server.state import ServerState, state_of
from deeproot.runtime.server.tenants import tenant_of
from deeproot.scheduler.questions import TreeAnswer, TreeNode, TreeQuestion
from deeproot.scheduler.stats import EngineStats

_FOLDER = Path(__file__).with_name("page")
_MAX_NODES = 2000

State = Annotated[ServerState, Depends(state_of)]
router = APIRouter(prefix="/v1/cache")


class ShownNode(msgspec.Struct, frozen=True, kw_only=True):
    """A run of tokens in the prefix tree. `id`: the same as long as the run begins where and as it does."""

    id: str
    parent: str | None
    start: int
    num_tokens: int
    num_pages: int
    num_children: int
    locks: int
    zone: str
    lease_s: float | None
    text: str
    """Its beginning."""


class ShownTree(msgspec.Struct, frozen=True):
    nodes: list[ShownNode]
    num_nodes: int
    """Of the whole tree, also what belongs to others."""
    page_size: int


def make_page_router() -> APIRouter:
    """`GET /`: one document without anything from elsewhere."""
    page = APIRouter()
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    document = (_FOLDER / "page.html").read_text(encoding="utf-8")
    document = document.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    # Not even a text that got into the page by mistake could run as a script or fetch anything.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
    }

    @page.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(document, media_type="text/html; charset=utf-8", headers=headers)

    return page


@router.get("/tree")
async def tree(
    request: Request, state: State, max_nodes: Annotated[int, Query(ge=1, le=_MAX_NODES)] = 512
) -> Response:
    """What the prefix tree holds, from the roots down. With API keys, each sees its own."""
    serving = state.ready()
    tenant = tenant_of(request, None)
    namespace = tenant.namespace if state.options.api_keys else None
    told = await serving.client.ask(TreeQuestion(max_nodes, namespace), TreeAnswer)
    return json_response(await asyncio.to_thread(_shown, told, serving.speech.assets.tokenizer))


@router.get("/stats")
async def stats(state: State) -> Response:
    """The engine's figures, and prompt tokens by why they were or were not cached."""
    serving = state.ready()
    # In a thread: figures are read between two of the engine's steps, and a step may be long.
    figures = await asyncio.to_thread(serving.client.stats)
    if figures is None:
        raise unavailable("The engine is being started: try again in a few seconds.")
    body = {"model": state.model_names[0], **_figures(figures), "misses": state.metrics.missed_tokens()}
    return json_response(body)


def _figures(stats: EngineStats) -> dict[str, object]:
    leased = {
        "shared": stats.num_shared_pages,
        "root": stats.num_root_pages,
        "trunk": stats.num_trunk_pages,
        "leaf": stats.num_leaf_pages,
    }
    plain = stats.num_cached_pages - stats.num_scratch_pages - sum(leased.values())
    hits = {
        "shared": stats.shared_hits,
        "root": stats.root_hits,
        "trunk": stats.trunk_hits,
        "leaf": stats.leaf_hits,
    }
    counters = stats.counters
    return {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "leases": stats.num_leases,
        "pages": {
            "total": stats.num_pages,
            "free": stats.num_free_pages,
            "evictable": stats.num_evictable_pages,
            "size": stats.page_size,
            "cached": {**leased, "plain": plain, "scratch": stats.num_scratch_pages},
        },
        "tokens": {
            "prompt": counters.prompt,
            "cached": counters.cached,
            "computed": counters.computed,
            "output": counters.output,
        },
        "hits": {**hits, "plain": counters.cached - sum(hits.values())},
        "evicted_pages": counters.evicted_pages,
        "preemptions": counters.preemptions,
    }


def _shown(told: TreeAnswer, tokenizer: Tokenizer) -> ShownTree:
    ids: list[str] = []
    nodes = []
    for node in told.nodes:
        parent = None if node.parent is None else ids[node.parent]
        ids.append(_id(node, parent))
        nodes.append(
            ShownNode(
                id=ids[-1],
                parent=parent,
                start=node.start,
                num_tokens=node.num_tokens,
                num_pages=node.num_pages,
                num_children=node.num_children,
                locks=node.locks,
                zone=EvictionClass(node.kind).name.lower(),
                lease_s=node.lease_s,
                text=tokenizer.decode(
                    np.frombuffer(node.first_ids, np.int32).tolist(), skip_special_tokens=False
                ),
            )
        )
    return ShownTree(nodes, told.num_nodes, told.page_size)


def _id(node: TreeNode, parent: str | None) -> str:
    seed = (parent or node.namespace.hex()).encode() + node.start.to_bytes(8, "big") + node.first_ids
    return hashlib.blake2b(seed, digest_size=8).hexdigest()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
