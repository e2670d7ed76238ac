"""Which weights stay quantised, and whether this machine can multiply them."""

from collections.abc import Mapping
from typing import Literal

import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from deeproot.engine.attention_choice import AttentionError, AttentionNeeds, choose_attention
from deeproot.engine.grouped_rows import GROUP, GroupedRows
from deeproot.engine.weights import GroupedStore, Shape, TensorStore, WeightError
from deeproot.engine.weights_gguf import GGUFStore
from deeproot.kernels.cpu.build import abilities_here

Quantization = Literal["none", "auto", "gguf", "int8"]
"""none: weights are in the model's dtype. gguf: as the GGUF file holds them, where it is in Q4_0, Q4_1 or Q8_0. auto: the
same, but none is no error. int8: all are rounded to 8 bits with a scale for each 32 values."""


class Int8Store:
    """A store whose weights are rounded to Q8_0, or are that already. See GroupedStore."""

    def __init__(self, store: TensorStore) -> None:
        self._store = store
        self.shapes: Mapping[str, Shape] = store.shapes

    def read(self, name: str) -> torch.Tensor:
        return self._store.read(name)

    def read_grouped(self, name: str) -> GroupedRows | None:
        if isinstance(self._store, GGUFStore):
            stored = self._store.read_grouped(name)
            if stored is not None and stored.type == "Q8_0":
                return stored
        return rounded_to_int8(self._store.read(name))


def rounded_to_int8(weight: torch.Tensor) -> GroupedRows | None:
    """The weight `[n, k]` in Q8_0: 8 bits and a scale for each 32 values. None if k is no multiple of that."""
    if weight.dim() != 2 or weight.shape[1] % GROUP:
        return None
    rounded = quants.quantize(weight.float().numpy(), GGMLQuantizationType.Q8_0)
    return GroupedRows("Q8_0", torch.from_numpy(rounded))


def grouped_store(store: TensorStore, quantization: Quantization) -> GroupedStore | None:
    """The store that says which weights stay quantised; None: none do.

    Raises WeightError where "gguf" is asked of a file that has none in a form that is supported.
    """
    if quantization == "int8":
        return Int8Store(store)
    if quantization == "none":
        return None
    if isinstance(store, GGUFStore) and store.has_grouped:
        return store
    if quantization == "auto":
        return None
    raise WeightError(
        "--quantization gguf: the model is no GGUF file with tensors in Q4_0, Q4_1 or Q8_0; give one that has them, "
        "or write --quantization int8 or none"
    )


def grouped_problem(needs: AttentionNeeds, attention: str) -> str | None:
    """Why weights cannot stay quantised here; None if they can.

    attention: the name of the backend that is asked for, or "auto".
    """
    if needs.device.type != "cpu":
        return "they are multiplied as such on a CPU only (--device cpu)"
    if not abilities_here().bf16:
        return "this CPU has not AVX-512 with bf16 and VNNI, which it needs"
    if needs.dtype != torch.bfloat16:
        return "activations must be in bfloat16 (--dtype bfloat16)"
    try:
        choice = choose_attention(attention, needs)
    except AttentionError as error:
        return str(error)
    if choice.name == "cpu":
        return None
    return f"attention is {choice.name}'s ({choice.why}), and it needs the compiled one"
