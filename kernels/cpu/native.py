"""The compiled library as Python sees it: C structures and functions, without any checks of what they are given."""

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int, c_long, c_size_t, c_void_p
from typing import Any, Literal

import torch

from deeproot.kernels.cpu.build import Abilities, abilities_here, built_library

Simd = Literal["plain", "avx2", "avx512"]
Matrix = Literal["none", "avx512_bf16", "amx"]
_SIMD: tuple[Simd, ...] = ("plain", "avx2", "avx512")
_MATRIX: tuple[Matrix, ...] = ("none", "avx512_bf16", "amx")
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Of elements, as attention.h numbers them."""
MAX_HEAD_DIM = 512
PANEL = 32
"""Rows of a weight that are packed together; inputs are, too."""

DENSE = 0
GROUPED_FORMS = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 3}
"""Of weights, as grouped.h numbers them."""
_GROUP_BYTES = {1: 18, 2: 20, 3: 34}
"""Of 32 values of a row."""


def packed_bytes(shape: tuple[int, int], form: int) -> int:
    """What a weight `[n, k]` takes when it is packed. form: DENSE or of GROUPED_FORMS."""
    n, k = (-(-size // PANEL) * PANEL for size in shape)
    return n * k * 2 if form == DENSE else n * k // 32 * _GROUP_BYTES[form]


class TeamStruct(Structure):
    _fields_ = (("parallel", c_void_p), ("num_threads", c_void_p), ("thread_num", c_void_p), ("size", c_int))


class FormsStruct(Structure):
    _fields_ = (("simd", c_int), ("matrix", c_int))


class BatchStruct(Structure):
    _fields_ = (
        ("num_tokens", c_int),
        ("num_seqs", c_int),
        ("page_size", c_int),
        ("table_stride", c_long),
        ("page_table", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("slots", c_void_p),
        ("positions", c_void_p),
    )


class AttentionStruct(Structure):
    _fields_ = (
        ("kind", c_int),
        ("q_heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("window", c_int),
        ("scale", c_float),
        ("cap", c_float),
        ("q", c_void_p),
        ("q_stride", c_long),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_long),
    )


class WeightStruct(Structure):
    _fields_ = (("packed", c_void_p), ("bias", c_void_p), ("n", c_int), ("k", c_int), ("form", c_int))


class RopeStruct(Structure):
    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("dim", c_int))


class LayerStruct(Structure):
    _fields_ = (
        *(
            (name, c_void_p)
            for name in (
                "attention_norm",
                "attention_post_norm",
                "mlp_norm",
                "mlp_post_norm",
                "q_norm",
                "k_norm",
            )
        ),
        *((name, WeightStruct) for name in ("qkv", "out", "gate_up", "down")),
        ("rope", RopeStruct),
        ("window", c_int),
        ("k", c_void_p),
        ("v", c_void_p),
    )


class DecoderStruct(Structure):
    _fields_ = (
        *((name, c_int) for name in ("num_layers", "hidden", "inner", "q_heads", "kv_heads", "head_dim")),
        ("gate", c_int),
        ("eps", c_float),
        ("scale", c_float),
        ("cap", c_float),
        ("layers", POINTER(LayerStruct)),
        ("last_norm", c_void_p),
        ("head", WeightStruct),
        ("table", WeightStruct),
        ("embedding", c_void_p),
        ("embedding_scale", c_float),
    )


class CpuLibrary:
    """The functions of the library, run by torch's own threads in the best forms that the CPU has.

    Not for use by several threads at once: all calls share one workspace.
    """

    def __init__(
        self, abilities: Abilities | None = None, simd: Simd | None = None, matrix: Matrix | None = None
    ) -> None:
        """abilities: None is what this CPU has. simd, matrix: None is the best of these.

        Raises BuildError if the library has to be compiled and cannot be.
        """
        abilities = abilities or abilities_here()
        self._lib = ctypes.CDLL(str(built_library(abilities)))
        self._lib.new_workspace.restype = c_void_p
        if abilities.bf16:
            self._lib.decoder_forward.restype = c_long
        self._workspace = c_void_p(self._lib.new_workspace())
        amx = abilities.amx and bool(self._lib.allow_amx())
        self.simd = simd or ("avx512" if abilities.avx512 else "avx2" if abilities.avx2 else "plain")
        self.matrix = matrix or ("amx" if amx else "avx512_bf16" if abilities.bf16 else "none")
        self._forms = FormsStruct(_SIMD.index(self.simd), _MATRIX.index(self.matrix))
        self._team = _torchs_team()

    def __del__(self) -> None:
        if hasattr(self, "_workspace"):
            self._lib.free_workspace(self._workspace)

    def attention(
        self,
        attention: AttentionStruct,
        batch: BatchStruct,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> None:
        """Put k and v into their slots and attend. k, v: `[T, num_kv_heads, head_dim]`, whose heads lie together."""
        self._lib.attention(
            byref(attention),
            byref(batch),
            c_void_p(k.data_ptr()),
            c_long(k.stride(0)),
            c_void_p(v.data_ptr()),
            c_long(v.stride(0)),
            byref(self._team),
            self._forms,
            self._workspace,
        )

    def want_large_pages(self, memory: torch.Tensor) -> None:
        self._lib.want_large_pages(c_void_p(memory.data_ptr()), c_size_t(memory.nbytes))

    def pack(self, weight: torch.Tensor, places: torch.Tensor, packed: torch.Tensor) -> None:
        """weight: `[n, k]` bfloat16. places: `[n]` int32, the column that each row becomes. packed: zeros before."""
        n, k = weight.shape
        self._lib.pack_weight(
            c_void_p(weight.data_ptr()),
            c_void_p(places.data_ptr()),
            n,
            k,
            c_void_p(packed.data_ptr()),
            byref(self._team),
        )

    def pack_grouped(
        self,
        rows: torch.Tensor,
        row_of: torch.Tensor,
        shape: tuple[int, int],
        form: int,
        packed: torch.Tensor,
    ) -> None:
        """rows: `[n, bytes of a row]` uint8 of a GGUF file; shape: `[n, k]`, k a multiple of 32; form: of GROUPED_FORMS.

        row_of: `[columns up to 32s]` int32, the row that becomes each column, -1 for none. packed: uint8.
        """
        self._lib.pack_grouped(
            c_void_p(rows.data_ptr()),
            c_void_p(row_of.data_ptr()),
            *shape,
            form,
            c_void_p(packed.data_ptr()),
            byref(self._team),
        )

    def release_memory(self) -> None:
        """Give memory that was freed back to the system."""
        self._lib.release_memory()

    def forward(
        self, model: DecoderStruct, batch: BatchStruct, input_ids: torch.Tensor, out: torch.Tensor
    ) -> None:
        """input_ids: `[T]` int64. out: `[T, hidden_size]` bfloat16, the hidden states after the last norm.

        Raises IndexError for an id that is not in the vocabulary.
        """
        wrong = self._lib.decoder_forward(
            byref(model),
            byref(batch),
            c_void_p(input_ids.data_ptr()),
            c_void_p(out.data_ptr()),
            byref(self._team),
            self._forms,
            self._workspace,
        )
        if wrong >= 0:
            raise IndexError(f"token id {int(input_ids[wrong])} is not in the vocabulary")

    def logits(self, model: DecoderStruct, hidden: torch.Tensor, out: torch.Tensor) -> None:
        """hidden: `[N, hidden_size]` bfloat16. out: `[N, vocab_size]` float32."""
        self._lib.decoder_logits(
            byref(model),
            c_void_p(hidden.data_ptr()),
            len(hidden),
            c_void_p(out.data_ptr()),
            byref(self._team),
            self._forms,
            self._workspace,
        )


def _torchs_team() -> TeamStruct:
    """Of the OpenMP runtime that torch has brought into the process; alone where there is none."""
    process: Any = ctypes.CDLL(None)
    names = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")
    if not all(hasattr(process, name) for name in names):
        return TeamStruct(None, None, None, 1)
    return TeamStruct(
        *(ctypes.cast(getattr(process, name), c_void_p).value for name in names), torch.get_num_threads()
    )
