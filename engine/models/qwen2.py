"""Qwen 2 and 2.5."""

from deeproot.engine.models.decoder import Decoder


class Qwen2ForCausalLM(Decoder):
    """The plain decoder with biases of Q, K and V, which the configuration says; its last layers may have a window."""
