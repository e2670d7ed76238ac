"""Where a sequence leads in the prefix tree. Changes nothing."""

from bisect import bisect_left
from typing import NamedTuple

from deeproot.engine.batch import Int32Array
from deeproot.engine.radix_node import Node, common_bytes


class Place(NamedTuple):
    """Where searched ids lead: down to the end of `node`, then `common` bytes into `child`."""

    node: Node
    offset: int
    child: Node | None
    common: int
    path: list[Int32Array]


def find(root: Node, ids: bytes, end: int, width: int) -> Place:
    """Follow `ids[:end]` from `root`. width: bytes of ids a page."""
    node, offset = root, 0
    path: list[Int32Array] = []
    while offset < end:
        page_key = ids[offset : min(offset + width, end)]
        keys = node.child_keys
        i = bisect_left(keys, page_key)
        if len(page_key) < width or i == len(keys) or not keys[i].startswith(page_key):
            return _nearest(node, i, ids, offset, end, path)
        child = node.children[i]
        key = child.key
        if len(key) % width or not ids.startswith(key, offset, end):
            return Place(node, offset, child, common_bytes(key, ids, offset, end), path)
        path.append(child.pages)
        node, offset = child, offset + len(key)
    return Place(node, offset, None, 0, path)


def _nearest(node: Node, i: int, ids: bytes, offset: int, end: int, path: list[Int32Array]) -> Place:
    """No child has the next whole page: the neighbour with the longest common start."""
    best, common = None, 0
    for child in node.children[max(i - 1, 0) : i + 1]:
        n = common_bytes(child.key, ids, offset, end)
        if n > common:
            best, common = child, n
    return Place(node, offset, best, common, path)
