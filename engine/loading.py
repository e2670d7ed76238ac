"""From a path to a model that is ready to run."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.attention_choice import AttentionName, AttentionSetup, make_backend
from deeproot.engine.attention_cpu import CpuAttention
from deeproot.engine.config import ConfigError, ModelConfig
from deeproot.engine.config_gguf import config_from_gguf
from deeproot.engine.config_hf import config_from_dict
from deeproot.engine.cpu_decoder import CpuDecoder
from deeproot.engine.fp8_product import fp8_problem
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.models import MODEL_CLASSES
from deeproot.engine.models.base import CausalLM
from deeproot.engine.models.decoder import Decoder
from deeproot.engine.quantization import Quantization, grouped_store
from deeproot.engine.text_files import read_text
from deeproot.engine.weight_files import SafetensorsStore
from deeproot.engine.weights import DummyWeights, Progress, StoredWeights, WeightError
from deeproot.engine.weights_fp8 import TiledFP8Store
from deeproot.engine.weights_gguf import GGUFStore

logger = logging.getLogger(__name__)

LoadFormat = Literal["auto", "gguf", "safetensors", "dummy"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""What `dtype` may be called, besides "auto"."""
_TOO_LARGE_FOR_FLOAT16 = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its weights."""

    model: CausalLM
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    grouped: bool = False
    """Whether weights stay quantised, so that the model has to be run as `faster_model` gives it."""


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of that name; "auto" is bfloat16 where the device computes in it, else float32.

    Raises ValueError for an unknown name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype != "auto":
        raise ValueError(f"dtype {dtype!r} is not supported; supported: auto, {', '.join(DTYPES)}")
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        # The last is ARM's name; elsewhere bfloat16 is emulated and slower than float32.
        fast = any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16


def read_config(path: Path, max_model_len: int | None = None) -> ModelConfig:
    """The configuration of a GGUF file, of a Hugging Face folder, or in a `config.json`.

    max_model_len: as in `load_model`.
    Raises ConfigError, GGUFError, FileNotFoundError.
    """
    if is_gguf(path):
        with GGUFFile(path) as file:
            return config_from_gguf(file, max_model_len)
    file_path = path / "config.json" if path.is_dir() else path
    if not file_path.is_file():
        raise FileNotFoundError(
            f"{file_path} does not exist: a model is a GGUF file or a folder with a config.json"
        )
    try:
        content = json.loads(read_text(file_path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file_path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file_path}: must hold an object")
    return config_from_dict(content, max_model_len)


def is_gguf(path: Path) -> bool:
    """Whether the path is a file that starts as GGUF files do, or is named as one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix == ".gguf"


def load_model(
    path: str | Path,
    load_format: LoadFormat = "auto",
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    max_model_len: int | None = None,
    quantization: Quantization = "none",
) -> LoadedModel:
    """Load a GGUF file, or a Hugging Face folder of safetensors.

    load_format: "dummy" reads only the configuration (of a file, folder or `config.json`) and makes up weights.
    progress: called with bytes done and bytes in all.
    max_model_len: the longest sequence that will be asked for; None is the model's own. A model whose rotary scaling
    depends on the length (dynamic, longrope) is set up for it.
    quantization: for made-up weights always "none".
    Raises FileNotFoundError, ConfigError, GGUFError, WeightError, ValueError (dtype); each says what is wrong.
    """
    path, device = Path(path), torch.device(device)
    kind = resolve_dtype(dtype, device)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: a model is a GGUF file or a folder with a config.json"
        )
    if load_format == "dummy":
        return _dummy(read_config(path, max_model_len), kind, device, progress)
    if is_gguf(path) and load_format != "safetensors":
        with GGUFFile(path) as file:
            config = config_from_gguf(file, max_model_len)
            _check_dtype(config, kind)
            stored = GGUFStore(file, config)
            grouped = grouped_store(stored, quantization)
            weights = StoredWeights(stored, kind, device, progress, grouped=grouped)
            return LoadedModel(_build(config, weights, device), config, kind, device, grouped is not None)
    if path.is_dir() and load_format != "gguf":
        config = read_config(path, max_model_len)
        _check_dtype(config, kind)
        weights = _folder_weights(path, config, kind, device, progress, quantization)
        return LoadedModel(_build(config, weights, device), config, kind, device, quantization == "int8")
    wanted = {"auto": "a GGUF file or a folder of safetensors", "gguf": "a GGUF file"}
    raise WeightError(f"{path} is not {wanted.get(load_format, 'a folder of safetensors')}")


def _folder_weights(
    path: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
    quantization: Quantization,
) -> StoredWeights:
    if config.weight_tile is None:
        store = SafetensorsStore(path)
        return StoredWeights(store, dtype, device, progress, grouped=grouped_store(store, quantization))
    tiled = TiledFP8Store(SafetensorsStore(path, fp8=True), config.weight_tile)
    problem = fp8_problem(device, dtype, config.weight_tile)
    how = "multiplied in e4m3" if problem is None else f"dequantised to {dtype}, since {problem}"
    logger.info("weights in e4m3 are %s", how)
    scaled = tiled if problem is None else None
    return StoredWeights(tiled, dtype, device, progress, scaled, grouped_store(tiled, quantization))


def make_attention(
    config: ModelConfig,
    pool: KVPool,
    name: AttentionName = "torch",
    dtype: torch.dtype | None = None,
    limits: BatchLimits | None = None,
    *,
    deterministic: bool = False,
) -> AttentionBackend:
    """The attention backend of that name for a model's scale, soft cap and windows.

    pool: of the model's layout, in `dtype` (None: the pool's), in which the model computes, or e4m3. limits: of the
    batches to come; None is as many as a pool of that size can be given. deterministic: as in AttentionNeeds.
    """
    windows = [config.window(layer) for layer in range(config.num_layers)]
    capacity = pool.num_pages * pool.page_size
    setup = AttentionSetup(
        pool,
        dtype or pool.layout.dtype,
        config.num_qo_heads,
        limits or BatchLimits(min(pool.num_pages, 64), min(capacity, 1024), capacity),
        config.attention_scale,
        config.attention_soft_cap,
        windows,
        deterministic,
    )
    return make_backend(name, setup)


def faster_model(loaded: LoadedModel, attention: AttentionBackend) -> CausalLM:
    """The model as it runs fastest with that backend; its weights may be taken from `loaded`, which is then of no use.

    Raises ValueError for weights that stay quantised where only torch could run the model.
    """
    compiled = isinstance(attention, CpuAttention) and attention.native.matrix != "none"
    if compiled and isinstance(loaded.model, Decoder) and loaded.dtype == torch.bfloat16:
        assert isinstance(attention, CpuAttention)
        return CpuDecoder(loaded.model, attention)
    if loaded.grouped:
        raise ValueError(
            "quantised weights run only in bfloat16 with the compiled cpu backend: use --quantization none"
        )
    return loaded.model


def _check_dtype(config: ModelConfig, dtype: torch.dtype) -> None:
    if dtype == torch.float16 and config.architecture in _TOO_LARGE_FOR_FLOAT16:
        raise ValueError(
            f"dtype float16: activations of {config.architecture} exceed what float16 can hold; "
            "use bfloat16 or float32"
        )


def _dummy(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, progress: Progress | None
) -> LoadedModel:
    _check_dtype(config, dtype)
    meta = torch.device("meta")
    sizes = DummyWeights(dtype, meta)
    _build(config, sizes, meta)
    weights = DummyWeights(dtype, device, total_bytes=sizes.taken_bytes, progress=progress)
    return LoadedModel(_build(config, weights, device), config, dtype, device)


def _build(config: ModelConfig, weights: StoredWeights | DummyWeights, device: torch.device) -> CausalLM:
    return MODEL_CLASSES[config.architecture](config, weights, device)
