"""What `quantization_config` says of a checkpoint's weights."""

from collections.abc import Mapping
from typing import Any

from deeproot.engine.config import ConfigError
from deeproot.engine.config_keys import Keys

WeightTile = tuple[int, int]
"""Rows and columns of a weight that share a scale."""


def read_weight_tile(data: Mapping[str, Any]) -> WeightTile | None:
    """The tiles of a checkpoint in e4m3 with a scale a tile (as DeepSeek and Qwen publish); None if it is not quantised.

    data: content of a `config.json`. Raises ConfigError for every other kind of quantisation.
    """
    settings = data.get("quantization_config")
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
    if not isinstance(settings, Mapping) or method != "fp8":
        raise ConfigError(
            f"config.json: quantization_config with quant_method {str(method)[:80]!r} is not supported; "
            "use the unquantised model, one in fp8 with weight_block_size, or a GGUF file of it"
        )
    keys = Keys(settings, "config.json: quantization_config")
    for key, supported in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        value = keys.string(key, supported)
        if value != supported:
            raise ConfigError(
                f"{keys.where}: {key} {value[:80]!r} is not supported for quant_method 'fp8'; supported: {supported}"
            )
    tile = settings.get("weight_block_size")
    if tile is None:
        raise ConfigError(
            f"{keys.where}: quant_method 'fp8' is supported only with 'weight_block_size'; "
            "use the unquantised model or a GGUF file of it"
        )
    if (
        not isinstance(tile, list)
        or len(tile) != 2
        or not all(type(n) is int and 0 < n < 2**31 for n in tile)
    ):
        raise keys.wrong("weight_block_size", "two whole numbers of at least 1", tile)
    return tile[0], tile[1]
