"""A model of vLLM's prefix cache (V1 engine): pages known by the hash of their tokens and of all before them.

As its documentation and `vllm/v1/core` describe it (automatic prefix caching, design page; block pool):

- Only whole pages have a hash, chained to the hash of the page before.
- A lookup takes the leading pages whose hashes are known, and never the last token of a prompt, so that at least one
  is computed: with a whole prompt cached, its last page is computed again, into a page of its own.
- Pages that no request uses stand in a queue. A hit takes them out of it, a new page is taken from its head, and loses
  its hash only then. A request that ends returns its pages to the end, last one first, so that of a sequence the end
  goes first; a part-filled one, which has no hash and can never be hit, comes to the head.

Answers are cached like prompts, but for their last token, which is never fed back.
"""

from collections import OrderedDict
from hashlib import blake2b

from deeproot.bench.cachesim.call import Call, Served
from deeproot.runtime.context.tokenizer import TokenIds


class VllmPages:
    """One request at a time. `num_pages`: pages that can be used (vLLM keeps one more for padding)."""

    def __init__(self, num_pages: int, page_size: int = 16) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"num_pages {num_pages} and page_size {page_size} must be at least 1")
        self.page_size = page_size
        self.num_pages = num_pages
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        """Pages that nobody uses, the next to be taken first."""
        self._hash_of: dict[int, bytes] = {}
        self._pages_of: dict[bytes, OrderedDict[int, None]] = {}
        """Pages with a hash, the oldest first: more than one where a last page was computed again."""

    @property
    def name(self) -> str:
        return "vLLM"

    def serve(self, call: Call) -> Served:
        """As `CacheModel`."""
        ids = call.computed_ids
        needed = -(-ids.size // self.page_size)
        if needed > self.num_pages:
            return Served(0, refused=True)
        hashes = chained_hashes(ids, self.page_size)
        held = []
        for known in hashes[: (call.prompt.size - 1) // self.page_size]:
            if known not in self._pages_of:
                break
            held.append(next(iter(self._pages_of[known])))
        hits = len(held)
        for page in held:
            del self._queue[page]
        held += [self._take() for _ in range(needed - hits)]
        for page, known in list(zip(held, hashes, strict=False))[hits:]:
            self._hash_of[page] = known
            self._pages_of.setdefault(known, OrderedDict())[page] = None
        self._queue.update(OrderedDict.fromkeys(reversed(held)))
        if len(hashes) < needed:
            self._queue.move_to_end(held[-1], last=False)
        return Served(hits * self.page_size)

    def _take(self) -> int:
        page, _ = self._queue.popitem(last=False)
        known = self._hash_of.pop(page, None)
        if known is not None:
            del self._pages_of[known][page]
            if not self._pages_of[known]:
                del self._pages_of[known]
        return page


def chained_hashes(ids: TokenIds, page_size: int) -> list[bytes]:
    """A hash for each whole page of `ids` (int32, shape [tokens]) and everything before it."""
    raw, width = ids.tobytes(), page_size * ids.itemsize
    made, before = [], b""
    for at in range(0, len(raw) - width + 1, width):
        before = blake2b(before + raw[at : at + width], digest_size=16).digest()
        made.append(before)
    return made
