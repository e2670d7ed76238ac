"""Mistral 7B and those that followed it with the same layers."""

from deeproot.engine.models.decoder import Decoder


class MistralForCausalLM(Decoder):
    """The plain decoder; if there is a window, every layer has it."""
