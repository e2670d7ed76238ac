"""Sampling by one Triton kernel, which the host need not wait for."""

import numpy as np
import torch

from deeproot.engine.batch import SamplingBatch
from deeproot.engine.logit_edits import edited
from deeproot.engine.sampling import GREEDY_BELOW
from deeproot.engine.transfer import to_device
from deeproot.kernels import sample as kernel


def sample_triton(logits: torch.Tensor, settings: SamplingBatch) -> torch.Tensor:
    """As `sampling.sample`, with two differences: tokens that equal a threshold are all kept, and draws are by another
    generator, so that a seed gives other tokens here (the same each time, whatever else is in the batch)."""
    logits = edited(logits, settings)
    greedy = settings.temperature < GREEDY_BELOW
    if greedy.all():
        return logits.argmax(-1)
    columns = (
        np.where(greedy, np.float32(0), settings.temperature),
        settings.top_k,
        settings.top_p,
        settings.min_p,
        settings.seeds.view(np.int64),
        settings.positions,
    )
    return kernel.sample(logits, *(to_device(column, logits.device) for column in columns))
