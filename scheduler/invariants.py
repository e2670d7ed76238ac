"""What must hold between steps, whatever happened before: run after every step in tests, on demand in service."""

import numpy as np

from deeproot.engine.radix_checks import check_tree, require
from deeproot.engine.radix_node import Node
from deeproot.scheduler.request import Request
from deeproot.scheduler.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raise InvariantError if pages, locks, the tree or the running table are not as they must be."""
    check_tree(scheduler.cache)
    _check_pages(scheduler)
    _check_locks(scheduler)
    for request in scheduler.table.running():
        _check_running(scheduler, request)
    for request in scheduler.waiting:
        require(request.row == -1 and request.node is None, f"{request.rid} waits and holds something")


def check_idle(scheduler: Scheduler) -> None:
    """`check`, and nothing is left of any request: no row, no lock, no private page."""
    check(scheduler)
    require(not scheduler.has_work, "there is work left")
    require(all(node.locks == 0 for node in scheduler.cache.nodes()), "a lock is left")
    pool = scheduler.pool
    require(pool.num_free + scheduler.cache.num_pages == pool.num_pages, "a page is lost")


def _check_pages(scheduler: Scheduler) -> None:
    """Each page is exactly one of: free, the tree's, private to one request."""
    table = scheduler.table
    owners = [scheduler.pool.free_pages(), *(node.pages for node in scheduler.cache.nodes())]
    owners += [table.pages_of(request)[request.num_borrowed :] for request in table.running()]
    pages = np.sort(np.concatenate(owners))
    require(
        len(pages) == scheduler.pool.num_pages and bool((pages == np.arange(len(pages))).all()),
        "a page has no owner or two",
    )


def _check_locks(scheduler: Scheduler) -> None:
    """A node's locks are those of the running requests whose path leads through it."""
    expected: dict[int, int] = {}
    for request in scheduler.table.running():
        node: Node | None = request.node
        require(node is not None, f"{request.rid} runs without a lock")
        while node is not None:
            expected[id(node)] = expected.get(id(node), 0) + 1
            node = node.parent
    for node in scheduler.cache.nodes():
        require(
            node.locks == expected.get(id(node), 0),
            f"{node.locks} locks, {expected.get(id(node), 0)} holders",
        )


def _check_running(scheduler: Scheduler, request: Request) -> None:
    table, size, row = scheduler.table, scheduler.cache.page_size, request.row
    num_tokens, num_computed = int(table.num_tokens[row]), int(table.num_computed[row])
    require(num_computed < num_tokens, f"{request.rid} has computed its last token")
    require(
        num_tokens <= table.limit[row] <= scheduler.config.max_model_len, f"{request.rid} is over its limit"
    )
    require(int(table.num_pages[row]) * size >= num_computed, f"{request.rid} has too few pages")
    path: list[Node] = []
    node: Node | None = request.node
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    pages = [page for step in reversed(path) for page in step.pages.tolist()]
    require(
        pages == table.pages_of(request)[: request.num_borrowed].tolist(),
        f"{request.rid} borrows other pages",
    )
    ids = b"".join(step.key for step in reversed(path))
    require(table.tokens[row, : len(ids) // 4].tobytes() == ids, f"{request.rid} borrows other tokens")
