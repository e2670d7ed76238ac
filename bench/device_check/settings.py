"""What is run with: the real sizes on a GPU, tiny ones in the interpreter."""

from dataclasses import dataclass
from typing import Any

import torch

from deeproot.bench.device_check.attention_cases import Lengths
from deeproot.bench.device_check.engine_rig import EngineSizes
from deeproot.bench.device_check.paged import Shape
from deeproot.kernels.devices import Device, device_named


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a part needs to know."""

    dry: bool
    """On the CPU by the interpreter: the times mean nothing."""
    seed: int

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    @property
    def model(self) -> Device:
        """Whose peak rates floors are counted with."""
        return device_named("" if self.dry else torch.cuda.get_device_name())

    @property
    def multiprocessors(self) -> int:
        return 4 if self.dry else int(torch.cuda.get_device_properties(0).multi_processor_count)

    @property
    def l2_bytes(self) -> int:
        return 0 if self.dry else int(torch.cuda.get_device_properties(0).L2_cache_size)

    @property
    def dtype(self) -> torch.dtype:
        """The interpreter computes products of bf16 wrongly."""
        return torch.float32 if self.dry else torch.bfloat16

    def shape(self, head_dim: int, page: int, fp8: bool = False) -> Shape:
        if self.dry:
            return Shape(1, 2, 64, page, self.dtype, fp8)
        return Shape(8, 4, head_dim, page, self.dtype, fp8)

    @property
    def checked(self) -> Lengths:
        """Ragged: one token, a page and one more or less, the first chunk and a later one."""
        if self.dry:
            return Lengths([(3, 21), (1, 16)], [17, 64, 1])
        return Lengths([(1, 65), (130, 130), (64, 640), (77, 333), (1, 1)], [1, 63, 64, 65, 127, 700, 2049])

    @property
    def timed(self) -> Lengths:
        """A chunk of 512 behind 5,632 cached tokens; sixteen requests of 6,144."""
        if self.dry:
            return Lengths([(2, 17)], [18, 19])
        return Lengths([(512, 6144)], [6144] * 16)

    @property
    def rows(self) -> tuple[int, int]:
        return (3, 2) if self.dry else (67, 8192)

    @property
    def columns(self) -> int:
        return 128 if self.dry else 4096

    @property
    def vocabulary(self) -> int:
        return 300 if self.dry else 128_256

    @property
    def engine(self) -> EngineSizes:
        if self.dry:
            return EngineSizes(
                _llama(64, 128, 1, 2, 1, 64, 97), self.dtype, 16, 1024, (20,), (1, 2), 9, 2, 1, 32
            )
        return EngineSizes(
            model=_llama(2048, 8192, 16, 32, 8, 64, 128_256),
            dtype=self.dtype,
            page=64,
            pool_tokens=262_144,
            prompts=(512, 2048, 8192, 32_768),
            batches=(1, 4, 16, 64),
            context=1024,
            steps=64,
            rounds=3,
            step_tokens=2048,
        )


def _llama(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": 65_536,
        "tie_word_embeddings": True,
        "rope_theta": 500_000.0,
    }
