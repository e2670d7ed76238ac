"""Answers to `questions`, by the engine's thread between two steps."""

from collections import deque

from deeproot.engine.eviction import class_of
from deeproot.engine.radix_node import TOKEN_BYTES, Node, namespace_of
from deeproot.scheduler.claims import Claims
from deeproot.scheduler.questions import (
    Answer,
    ForkQuestion,
    HoldAnswer,
    HoldQuestion,
    LeaveQuestion,
    ProbeAnswer,
    ProbeQuestion,
    Question,
    SessionAnswer,
    TreeAnswer,
    TreeNode,
    TreeQuestion,
)
from deeproot.scheduler.scheduler import Scheduler

_SHOWN_TOKENS = 32
"""Of a node's tokens, how many an answer carries."""


def answer(scheduler: Scheduler, question: Question) -> Answer:
    """What the scheduler and its tree say now."""
    if isinstance(question, ProbeQuestion):
        cache, shared = scheduler.cache, question.shared or (0,) * len(question.prompts)
        cached = tuple(
            cache.probe(ids, cache.route(question.namespace, n))
            for ids, n in zip(question.prompts, shared, strict=True)
        )
        return ProbeAnswer(cached, scheduler.prefill_rate.tokens_per_second)
    if isinstance(question, HoldQuestion):
        held = scheduler.claims.hold(question.rid, question.boundaries)
        return HoldAnswer(held)
    if isinstance(question, ForkQuestion):
        return _fork(scheduler.claims, question)
    if isinstance(question, LeaveQuestion):
        pages = scheduler.claims.leave(question.namespace, question.session, question.keep)
        return SessionAnswer(pages is not None, scratch_pages=pages or 0)
    return _tree(scheduler, question)


def _fork(claims: Claims, question: ForkQuestion) -> SessionAnswer:
    if not claims.knows(question.namespace, question.session):
        return SessionAnswer(False)
    begun = claims.fork(question.namespace, question.session, question.new)
    return SessionAnswer(True, taken=begun is None, num_tokens=begun or 0)


def _tree(scheduler: Scheduler, question: TreeQuestion) -> TreeAnswer:
    cache = scheduler.cache
    line: deque[tuple[Node, int | None, bytes]] = deque((node, None, b"") for node in cache.root.children)
    cache.leases.expire(scheduler.clock())
    nodes: list[TreeNode] = []
    while line and len(nodes) < question.max_nodes:
        node, parent, namespace = line.popleft()
        namespace = namespace_of(node.whose) if node.whose else namespace
        if question.namespace is not None:
            if node.is_shared:
                line.extend((child, None, b"") for child in node.children)
                continue
            if namespace != question.namespace:
                continue
        line.extend((child, len(nodes), namespace) for child in node.children)
        nodes.append(_told(node, parent, namespace, cache.leases.now))
    return TreeAnswer(tuple(nodes), cache.num_nodes, cache.page_size)


def _told(node: Node, parent: int | None, namespace: bytes, now: float) -> TreeNode:
    return TreeNode(
        parent=parent,
        namespace=namespace,
        start=node.start // TOKEN_BYTES,
        num_tokens=len(node.key) // TOKEN_BYTES,
        num_pages=len(node.pages),
        num_children=len(node.children),
        locks=node.locks,
        used=node.used,
        kind=int(class_of(node.rank)),
        lease_s=max((lease.end - now for lease in node.leases), default=None),
        first_ids=node.key[: _SHOWN_TOKENS * TOKEN_BYTES],
    )
