"""What the prefix tree has evicted lately, so that a miss can be told from a prefix that was never here.

Evicting a node puts it here as it is, which costs an append: nothing is hashed or copied. A node keeps its link to
its parent, which cannot be evicted before it and so is found here or in the tree for as long as the node is.
"""

from collections import deque

from deeproot.engine.radix_node import Node, Route, common_bytes


class Ghosts:
    """The nodes evicted last, without their pages. Bounded in nodes and in bytes of token ids."""

    def __init__(self, max_nodes: int = 4096, max_bytes: int = 16 * 2**20) -> None:
        self._max_nodes = max_nodes
        self._max_bytes = max_bytes
        self._nodes: deque[Node] = deque()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def add(self, evicted: list[Node]) -> None:
        """Take nodes that have just left the tree, in order; nobody changes them any more."""
        nodes = self._nodes
        nodes.extend(evicted)
        for node in evicted:
            self._num_bytes += len(node.key)
        while len(nodes) > self._max_nodes or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(nodes.popleft().key)

    def reach(self, ids: bytes, start: int, end: int, route: Route) -> int:
        """How far in bytes `ids[:end]` goes on from `start`, where its match ends, in what was evicted.

        Looks at every ghost, at a fraction of a microsecond each: for requests that miss what they should hit.
        """
        reached = -1
        while reached < start:
            reached, start = start, self._one_pass(ids, start, end, route)
        return start

    def _one_pass(self, ids: bytes, start: int, end: int, route: Route) -> int:
        # Newest first: what lies nearer to the root was evicted later, so one pass mostly suffices.
        for node in reversed(self._nodes):
            if node.start <= start < node.start + len(node.key) and ids.startswith(node.key[:4], node.start):
                # Behind the end of what is shared, its namespace's own would stand.
                stop = min(end, route.shared) if node.is_shared else end
                common = node.start + common_bytes(node.key, ids, node.start, max(stop, node.start))
                if common > start and _leads_to(node, ids, route):
                    start = common
        return start


def _leads_to(node: Node, ids: bytes, route: Route) -> bool:
    """Whether `node` is on the route and the tokens before it are those of `ids`."""
    if node.whose != route.whose(node.start):
        return False
    end, step = node.start, node.parent
    while step is not None and step.parent is not None:
        if step.start < end:  # a parent in the tree may have been split below the place where this run began
            if step.whose != route.whose(step.start):
                return False
            if not ids.startswith(step.key[: end - step.start], step.start):
                return False
            end = step.start
        step = step.parent
    return True
