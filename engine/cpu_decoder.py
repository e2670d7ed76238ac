"""A decoder whose whole forward pass is one call of the C++ library: bfloat16 on a CPU that computes in it."""

import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.attention_cpu import CpuAttention
from deeproot.engine.grouped_rows import GroupedRows, Weight
from deeproot.engine.layers import Linear, RMSNorm, soft_cap
from deeproot.engine.models.decoder import Decoder, Layer
from deeproot.engine.rope import RotaryEmbedding
from deeproot.kernels.cpu.native import (
    DENSE,
    GROUPED_FORMS,
    PANEL,
    CpuLibrary,
    DecoderStruct,
    LayerStruct,
    RopeStruct,
    WeightStruct,
    packed_bytes,
)

_GATES = {"silu": 3, "gelu_tanh": 4}
"""As `Finish` of matmul.h numbers them."""


class CpuDecoder:
    """See CausalLM. Weights are packed for the library's products; between layers activations are float32.

    A row's result does not depend on the rows beside it, but for attention of several tokens at a time, and for quantised
    weights, which more than 12 rows are multiplied by otherwise than fewer (see matmul_grouped.cpp).
    """

    def __init__(self, decoder: Decoder, attention: CpuAttention) -> None:
        """decoder: in bfloat16 on the CPU; its weights are taken from it one by one, so that they are never there twice.

        attention: the backend that it will be run with, whose pool its layers write.
        """
        config = decoder.config
        self.config = config
        self._attention = attention
        self._native = attention.native
        packer = _Packer(self._native, _packed_size(decoder))
        self._kept = packer.kept
        layers = (LayerStruct * config.num_layers)(
            *(self._layer(decoder, layer, index, packer) for index, layer in enumerate(decoder.layers))
        )
        table, embedding = self._table(decoder, packer)
        head = packer.pack(decoder.head)
        if decoder.head is decoder.embedding.weight:
            table = head
        self.packed_bytes = packer.used
        """Of all weights that steps multiply."""
        decoder.head = decoder.embedding.weight = torch.empty(0)
        self._native.release_memory()
        scale = decoder.embedding_scale
        self._struct = DecoderStruct(
            config.num_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_qo_heads,
            config.num_kv_heads,
            config.head_dim,
            _GATES[config.activation],
            config.rms_norm_eps,
            attention.scale,
            attention.cap,
            layers,
            packer.norm(decoder.norm),
            head,
            table,
            embedding,
            1.0 if scale is None else float(scale),
        )

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        """See CausalLM. Raises ValueError for another backend than its own."""
        if attention is not self._attention:
            raise ValueError("a CpuDecoder runs with the attention backend that it was made for")
        ids = input_ids.contiguous()
        out = torch.empty(len(ids), self.config.hidden_size, dtype=torch.bfloat16)
        self._native.forward(self._struct, self._attention.planned.struct, ids, out)
        return out

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(hidden), self.config.vocab_size)
        self._native.logits(self._struct, hidden.contiguous(), out)
        cap = self.config.logits_soft_cap
        return out if cap is None else soft_cap(out, cap)

    def _table(self, decoder: Decoder, packer: "_Packer") -> tuple[WeightStruct, int | None]:
        """Embeddings of their own, packed or the address of dense ones; neither if the head has them."""
        weight = decoder.embedding.weight
        if weight is decoder.head:
            return WeightStruct(), None
        if isinstance(weight, GroupedRows):
            return packer.pack(weight), None
        return WeightStruct(), packer.keep(weight)

    def _layer(self, decoder: Decoder, layer: Layer, index: int, packer: "_Packer") -> LayerStruct:
        norms, attention = layer.norms, layer.attention
        q_norm, k_norm = attention.head_norms or (None, None)
        window = self.config.window(index)
        local = window is not None and decoder.local_rope is not None
        rope = decoder.local_rope if local and decoder.local_rope is not None else decoder.rope
        k_pool, v_pool = self._attention.pool.kv(index)
        struct = LayerStruct(
            *(
                packer.norm(norm)
                for norm in (
                    norms.before_attention,
                    norms.after_attention,
                    norms.before_mlp,
                    norms.after_mlp,
                    q_norm,
                    k_norm,
                )
            ),
            packer.linear(attention.qkv),
            packer.linear(attention.out),
            packer.linear(layer.mlp.gate_up, paired=True),
            packer.linear(layer.mlp.down),
            packer.rope(rope),
            window or 0,
            k_pool.data_ptr(),
            v_pool.data_ptr(),
        )
        self._native.release_memory()
        return struct


def _up(n: int) -> int:
    return -(-n // PANEL) * PANEL


def _form(weight: Weight) -> int:
    return GROUPED_FORMS[weight.type] if isinstance(weight, GroupedRows) else DENSE


def _shape(weight: Weight) -> tuple[int, int]:
    n, k = weight.shape
    return n, k


def _packed_size(decoder: Decoder) -> int:
    """Bytes of all packed weights."""
    weights = [decoder.head]
    if isinstance(decoder.embedding.weight, GroupedRows) and decoder.embedding.weight is not decoder.head:
        weights.append(decoder.embedding.weight)
    for layer in decoder.layers:
        attention, mlp = layer.attention, layer.mlp
        weights += [linear.weight for linear in (attention.qkv, attention.out, mlp.gate_up, mlp.down)]
    return sum(packed_bytes(_shape(weight), _form(weight)) for weight in weights)


class _Packer:
    """Packs weights one after another into one piece of memory, in the order in which a step reads them."""

    def __init__(self, native: CpuLibrary, size: int) -> None:
        """size: in bytes, of all."""
        self._native = native
        self._memory = torch.empty(size, dtype=torch.uint8)
        native.want_large_pages(self._memory)
        self.used = 0
        """Bytes."""
        self.kept: list[torch.Tensor] = [self._memory]
        """What structures point to."""

    def keep(self, tensor: torch.Tensor) -> int:
        """Its address, valid for as long as `kept` is."""
        tensor = tensor.contiguous()
        self.kept.append(tensor)
        return tensor.data_ptr()

    def norm(self, norm: RMSNorm | None) -> int | None:
        return None if norm is None else self.keep(norm.factors())

    def rope(self, rope: RotaryEmbedding) -> RopeStruct:
        return RopeStruct(self.keep(rope.cos), self.keep(rope.sin), 2 * rope.cos.shape[1])

    def linear(self, linear: Linear, paired: bool = False) -> WeightStruct:
        """Takes the layer's weight from it. paired: it is gates and ups, of which 16 and 16 go side by side."""
        n = linear.weight.shape[0]
        places = torch.arange(n, dtype=torch.int32)
        if paired:
            channel = places % (n // 2)
            places = channel // 16 * 32 + channel % 16 + (places >= n // 2).int() * 16
        packed = self.pack(linear.weight, places)
        if linear.bias is not None:
            bias = torch.zeros(_up(n))
            bias[places.long()] = linear.bias.float()
            packed.bias = self.keep(bias)
        linear.weight = torch.empty(0)
        return packed

    def pack(self, weight: Weight, places: torch.Tensor | None = None) -> WeightStruct:
        """weight: `[n, k]`. places: see `CpuLibrary.pack`; None is the order of the rows."""
        (n, k), form = _shape(weight), _form(weight)
        size = packed_bytes((n, k), form)
        packed = self._memory[self.used : self.used + size]
        self.used += size
        if places is None:
            places = torch.arange(n, dtype=torch.int32)
        if isinstance(weight, GroupedRows):
            row_of = torch.full((_up(n),), -1, dtype=torch.int32)
            row_of[places.long()] = torch.arange(n, dtype=torch.int32)
            self._native.pack_grouped(weight.data.contiguous(), row_of, (n, k), form, packed)
        else:
            if (n, k) != (_up(n), _up(k)):
                packed.zero_()
            self._native.pack(weight.contiguous(), places, packed)
        return WeightStruct(packed.data_ptr(), None, n, k, form)
