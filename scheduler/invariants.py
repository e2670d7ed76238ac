"""What must hold between steps, whatever happened before: run after every step in tests, on demand in service."""

from collections.abc import Sequence

import numpy as np

from deeproot.engine.batch import Int32Array
from deeproot.engine.radix_checks import InvariantError, check_tree, require
from deeproot.engine.radix_node import Node
from deeproot.scheduler.flight import Flight
from deeproot.scheduler.request import Request
from deeproot.scheduler.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raise InvariantError if pages, locks, the tree or the running table are not as they must be."""
    check_tree(scheduler.cache)
    nodes = list(scheduler.cache.nodes())
    _check_pages(scheduler, nodes)
    _check_locks(scheduler, nodes)
    for request in scheduler.table.running():
        _check_running(scheduler, request)
        _check_expected(scheduler, request)
    for request in _holders(scheduler):
        _check_borrowed(scheduler, request)
    for request in scheduler.endings.leaving:
        require(any(f.has(request.row) for f in scheduler.flights), f"{request.rid} has ended and stays")
        require(request.row not in scheduler.table.rows, f"{request.rid} has ended and runs")
    for flight in scheduler.flights:
        _check_flight(scheduler, flight, nodes)
    holding = [one.rid for one in scheduler.waiting if one.row != -1 or one.node is not None]
    require(not holding, f"{holding} wait and hold something")


def check_idle(scheduler: Scheduler) -> None:
    """`check`, and nothing is left of any request: no row, no lock, no private page."""
    check(scheduler)
    require(not scheduler.has_work, "there is work left")
    require(not scheduler.requests(), "a request is left")
    require(all(node.locks == 0 for node in scheduler.cache.nodes()), "a lock is left")
    pool = scheduler.pool
    require(pool.num_free + scheduler.cache.num_pages == pool.num_pages, "a page is lost")


def _holders(scheduler: Scheduler) -> list[Request]:
    """Who may hold pages and locks."""
    return [*scheduler.table.running(), *scheduler.endings.leaving]


def _own_pages(scheduler: Scheduler, request: Request) -> Int32Array:
    return scheduler.table.pages_of(request)[request.num_borrowed :]


def _check_pages(scheduler: Scheduler, nodes: Sequence[Node]) -> None:
    """Each page is exactly one of: free, the tree's, private to one request, to be freed when a step has landed."""
    owners = [scheduler.pool.free_pages(), *(node.pages for node in nodes)]
    owners += [_own_pages(scheduler, request) for request in _holders(scheduler)]
    owners += [pages for flight in scheduler.flights for pages in flight.frees]
    pages, num_pages = np.concatenate(owners), scheduler.pool.num_pages
    require(
        len(pages) == num_pages and bool((np.bincount(pages, minlength=num_pages) == 1).all()),
        "a page has no owner or two",
    )


def _check_locks(scheduler: Scheduler, nodes: Sequence[Node]) -> None:
    """A node's locks are those of the requests in the table whose path leads through it."""
    expected: dict[int, int] = {}
    for request in _holders(scheduler):
        node: Node | None = request.node
        require(node is not None, f"{request.rid} runs without a lock")
        while node is not None:
            expected[id(node)] = expected.get(id(node), 0) + 1
            node = node.parent
    for node in nodes:
        held = expected.get(id(node), 0)
        if node.locks != held:
            raise InvariantError(f"{node.locks} locks, {held} holders")


def _check_running(scheduler: Scheduler, request: Request) -> None:
    table, size, row = scheduler.table, scheduler.cache.page_size, request.row
    num_tokens, num_computed = int(table.num_tokens[row]), int(table.num_computed[row])
    require(num_computed < num_tokens, f"{request.rid} has computed its last token")
    require(
        num_tokens <= table.limit[row] <= scheduler.config.max_model_len, f"{request.rid} is over its limit"
    )
    require(int(table.num_pages[row]) * size >= num_computed, f"{request.rid} has too few pages")


def _check_expected(scheduler: Scheduler, request: Request) -> None:
    """What is expected is what has come back and what steps in flight bring."""
    table, row = scheduler.table, request.row
    computing = sum(int(f.step.certain[f.step.rows == row].sum()) for f in scheduler.flights)
    sampling = sum(int((f.step.sampling_rows == row).sum()) for f in scheduler.flights)
    num_expected, num_scheduled = int(table.num_expected[row]), int(table.num_scheduled[row])
    require(
        num_scheduled == int(table.num_computed[row]) + computing,
        f"{request.rid} counts other tokens as scheduled",
    )
    require(num_expected == int(table.num_tokens[row]) + sampling, f"{request.rid} expects other tokens")
    require(num_scheduled < num_expected <= table.limit[row], f"{request.rid} is scheduled beyond its end")


def _check_flight(scheduler: Scheduler, flight: Flight, nodes: Sequence[Node]) -> None:
    """A step in flight writes only to pages of its own requests, and what it reads is not given to others."""
    step, size = flight.step, scheduler.cache.page_size
    slots = np.split(step.batch.slot_mapping, step.batch.cu_seqlens_q[1:-1])
    gone = [scheduler.pool.free_pages()]
    gone += [node.pages for node in nodes if not node.locks]
    for i, row in enumerate(step.rows.tolist()):
        request = scheduler.table.request(row)
        own = _own_pages(scheduler, request)
        require(
            bool(np.isin(slots[i] // size, own).all()), f"{request.rid} writes to pages that are not its own"
        )
        read = step.batch.page_table[i, : -(-int(step.batch.seq_lens[i]) // size)]
        require(not np.isin(read, np.concatenate(gone)).any(), f"{request.rid} reads pages that could go")
    if step.batch.fed is not None:
        fed = step.rows[np.searchsorted(step.batch.cu_seqlens_q, step.batch.fed.tokens, side="right") - 1]
        require(
            not scheduler.table.step_by_step[fed].any(), "a request that needs its last token was fed without"
        )


def _check_borrowed(scheduler: Scheduler, request: Request) -> None:
    """A request's first pages are those of the node that it locks, and hold its tokens."""
    table, row = scheduler.table, request.row
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
