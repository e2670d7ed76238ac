"""Small GGUF files that the `gguf` package writes."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None], arch: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, arch)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fill_sample(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int8("a.i8", -128)
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Ġwörld 世界")
    writer.add_array("a.strings", ["", "a", "Ġb", "世界"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_array("a.bools", [True, False, True])
    rng = np.random.default_rng(0)
    writer.add_tensor("f32", rng.normal(size=(3, 5)).astype(np.float32))
    writer.add_tensor("f16", rng.normal(size=(2, 3, 4)).astype(np.float16))
    writer.add_tensor("vector", rng.normal(size=7).astype(np.float32))
    quantised = quants.quantize(rng.normal(size=(4, 64)).astype(np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", quantised, raw_dtype=GGMLQuantizationType.Q8_0)
