"""deeproot: a serving engine in which prompt layout and KV reuse are designed together."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeproot.runtime.llm import LLM as LLM

__all__ = ["LLM", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load `LLM` on first use, so that `import deeproot.runtime.…` never pulls in torch."""
    if name == "LLM":
        from deeproot.runtime.llm import LLM

        return LLM
    raise AttributeError(f"module 'deeproot' has no attribute {name!r}")
