"""Llama 2 and 3, TinyLlama, SmolLM and whatever else calls itself LlamaForCausalLM."""

from deeproot.engine.models.decoder import Decoder


class LlamaForCausalLM(Decoder):
    """The plain decoder; rotary scaling and biases are the configuration's."""
