"""Architecture name to model class."""

from deeproot.engine.models.base import CausalLM
from deeproot.engine.models.gemma import Gemma2ForCausalLM, Gemma3ForCausalLM
from deeproot.engine.models.llama import LlamaForCausalLM
from deeproot.engine.models.mistral import MistralForCausalLM
from deeproot.engine.models.phi3 import Phi3ForCausalLM
from deeproot.engine.models.qwen2 import Qwen2ForCausalLM
from deeproot.engine.models.qwen3 import Qwen3ForCausalLM

MODEL_CLASSES: dict[str, type[CausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
}
"""Keys are `ModelConfig.architecture`."""
