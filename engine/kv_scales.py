"""Scales for a KV cache in e4m3: what K and V of each head are divided by before they are kept.

e4m3 has 4 bits of precision from 2**-6 to 448 whatever the scale; a scale must only keep values inside. So it is enough to
see how large K and V become on some text, and to leave room above: too large a value is clamped, which hurts, and too
large a scale only moves small values, which matter little, under 2**-6.
"""

import numpy as np
import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.batch import ForwardBatch, Int32Array, one_sequence
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.models.base import CausalLM
from deeproot.kernels.reference import FP8_MAX

HEADROOM = 4.0
"""By how much K and V may exceed the largest seen without being clamped."""
_NUM_TOKENS = 256
_PAGE_SIZE = 16

KVScales = tuple[torch.Tensor, torch.Tensor]
"""Of K and of V, each `[num_layers, num_kv_heads]` float32."""


@torch.inference_mode()
def measure_kv_scales(
    model: CausalLM, dtype: torch.dtype, device: torch.device, token_ids: Int32Array | None = None
) -> KVScales:
    """Run a sequence through the model and take each head's largest absolute K and V, with headroom, for 448.

    token_ids: what to run, at most as long as the model allows; None is random tokens, the same each time.
    """
    config = model.config
    if token_ids is None:
        count = min(_NUM_TOKENS, config.max_position_embeddings)
        token_ids = np.random.default_rng(0).integers(0, config.vocab_size, count).astype(np.int32)
    num_pages = -(-len(token_ids) // _PAGE_SIZE)
    pool = KVPool(config.kv_layout(_PAGE_SIZE, dtype), num_pages, device)
    windows = [config.window(layer) for layer in range(config.num_layers)]
    recorder = _Recorder(
        TorchAttention(pool, config.attention_scale, config.attention_soft_cap, windows),
        largest=torch.zeros(2, config.num_layers, config.num_kv_heads, device=device),
    )
    recorder.plan(one_sequence(token_ids, 0, pool.alloc(num_pages), _PAGE_SIZE))
    ids = torch.from_numpy(token_ids).to(device, torch.int64)
    model.forward(ids, torch.arange(len(ids), device=device), recorder)
    largest = recorder.largest
    k_scale, v_scale = torch.where(largest > 0, largest * (HEADROOM / FP8_MAX), torch.ones_like(largest))
    return k_scale, v_scale


class _Recorder:
    """An AttentionBackend that notes how large K and V become."""

    name = "recorder"

    def __init__(self, attention: AttentionBackend, largest: torch.Tensor) -> None:
        """largest: `[2, num_layers, num_kv_heads]` of K and of V."""
        self._attention = attention
        self.largest = largest

    def plan(self, batch: ForwardBatch) -> None:
        self._attention.plan(batch)

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for kind, values in enumerate((k, v)):
            self.largest[kind, layer] = values.float().abs().amax((0, 2))
        return self._attention.run(layer, q, k, v)
