"""deeproot: a serving engine in which prompt layout and KV reuse are designed together."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeproot.runtime.llm import LLM as LLM
    from deeproot.runtime.llm_cache import CacheHints as CacheHints
    from deeproot.runtime.llm_cache import KeptRun as KeptRun
    from deeproot.runtime.sampling_options import SamplingOptions as SamplingOptions
    from deeproot.runtime.structured.options import StructuredOutputs as StructuredOutputs

__all__ = ["LLM", "CacheHints", "KeptRun", "SamplingOptions", "StructuredOutputs", "__version__"]
__version__ = "0.1.0"

_HOMES = {
    "LLM": "deeproot.runtime.llm",
    "CacheHints": "deeproot.runtime.llm_cache",
    "KeptRun": "deeproot.runtime.llm_cache",
    "SamplingOptions": "deeproot.runtime.sampling_options",
    "StructuredOutputs": "deeproot.runtime.structured.options",
}


def __getattr__(name: str) -> Any:
    """Load what is offered here on first use, so that `import deeproot.runtime.…` never pulls in torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'deeproot' has no attribute {name!r}")
