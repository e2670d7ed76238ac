"""Architecture name to model class."""

from deeproot.engine.models.base import CausalLM
from deeproot.engine.models.llama import LlamaForCausalLM

MODEL_CLASSES: dict[str, type[CausalLM]] = {"LlamaForCausalLM": LlamaForCausalLM}
"""Keys are `ModelConfig.architecture`."""
