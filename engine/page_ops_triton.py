"""Page operations by the kernel of `kernels.copy_pages`: one launch for all layers of K, one for V."""

import numpy as np

from deeproot.engine.batch import Int32Array
from deeproot.engine.page_ops import Pools
from deeproot.engine.transfer import to_device
from deeproot.kernels.copy_pages import copy_pages, zero_pages


class TritonPageOps:
    """See PageOps."""

    def zero(self, pools: Pools, pages: Int32Array) -> None:
        index = to_device(pages, pools[0].device)
        for pool in pools:
            zero_pages(pool, index)

    def copy(self, pools: Pools, src: int, dst: int, num_tokens: int) -> None:
        numbers = to_device(np.array([src, dst, num_tokens], dtype=np.int32), pools[0].device)
        source, target, tokens = (numbers[i : i + 1] for i in range(3))
        for pool in pools:
            copy_pages(pool, pool, source, target, tokens)
