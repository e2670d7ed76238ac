"""Which code samples."""

import importlib
import importlib.util
from collections.abc import Callable

import torch

from deeproot.engine.batch import SamplingBatch
from deeproot.engine.sampling import sample

Sampler = Callable[[torch.Tensor, SamplingBatch], torch.Tensor]
"""See `sampling.sample`."""


def choose_sampler(device: torch.device) -> Sampler:
    """On a GPU the one that the host does not wait for, where Triton is installed."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return sample
    # Not at the top: Triton is not there on every machine.
    chosen: Sampler = importlib.import_module("deeproot.engine.sampling_triton").sample_triton
    return chosen
