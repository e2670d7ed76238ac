"""An infinite cache of block ids, without a tree."""

from collections.abc import Sequence

from deeproot.bench.cachesim.mooncake import BLOCK, BlockRequest


def shared_by_blocks(requests: Sequence[BlockRequest], block: int = BLOCK) -> list[int]:
    """Of each request, how many tokens an infinite cache would have, counted with a set of block ids and no tree.

    Counts leading blocks that an earlier prompt had, but never a prompt's last token, which is always computed.
    """
    seen: dict[int, int] = {}  # id -> tokens of the block that have been seen
    made = []
    for request in requests:
        sizes = [block] * (len(request.hash_ids) - 1)
        sizes.append(request.input_length - sum(sizes))
        shared = 0
        for known, size in zip(request.hash_ids, sizes, strict=True):
            had = min(seen.get(known, 0), size)
            shared += had
            if had < size:
                break
        for known, size in zip(request.hash_ids, sizes, strict=True):
            seen[known] = max(size, seen.get(known, 0))
        made.append(min(shared, request.input_length - 1))
    return made
