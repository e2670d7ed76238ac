"""Where a sequence leads in the prefix tree. Changes nothing."""

from bisect import bisect_left
from typing import NamedTuple

from deeproot.engine.batch import Int32Array
from deeproot.engine.radix_node import SHARED, Node, Route, common_bytes


class Place(NamedTuple):
    """Where searched ids lead: down to the end of `node`, then `common` bytes into `child`."""

    node: Node
    offset: int
    child: Node | None
    common: int
    path: list[Int32Array]


def find(root: Node, ids: bytes, end: int, width: int, route: Route) -> Place:
    """Follow `ids[:end]` from `root`, first through what is shared. width: bytes of ids a page."""
    place = Place(root, 0, None, 0, [])
    if route.shared:
        place = _follow(place, ids, min(end, route.shared), width, SHARED)
        if place.offset < route.shared:
            return place
    return _follow(place, ids, end, width, route.mark)


def _follow(begin: Place, ids: bytes, end: int, width: int, whose: bytes) -> Place:
    """Go on from a place at a node's end, to children that are `whose`."""
    node, offset, _, _, path = begin
    while offset < end:
        page_key = ids[offset : min(offset + width, end)]
        keys, name = node.child_keys, whose + page_key
        i = bisect_left(keys, name)
        if len(page_key) < width or i == len(keys) or not keys[i].startswith(name):
            near = [child for child in node.children[max(i - 1, 0) : i + 1] if child.whose == whose]
            return _nearest(node, near, ids, offset, end, path)
        child = node.children[i]
        key = child.key
        if len(key) % width or not ids.startswith(key, offset, end):
            return Place(node, offset, child, common_bytes(key, ids, offset, end), path)
        path.append(child.pages)
        node, offset = child, offset + len(key)
        if whose != SHARED:
            whose = b""
    return Place(node, offset, None, 0, path)


def _nearest(
    node: Node, near: list[Node], ids: bytes, offset: int, end: int, path: list[Int32Array]
) -> Place:
    """No child has the next whole page: of the neighbours `near` the one with the longest common start."""
    best, common = None, 0
    for child in near:
        n = common_bytes(child.key, ids, offset, end)
        if n > common:
            best, common = child, n
    return Place(node, offset, best, common, path)
