"""How likely tokens were, by the model's own logits."""

from collections.abc import Callable

import numpy as np
import torch

from deeproot.engine.batch import Int32Array, Logprobs
from deeproot.engine.transfer import HostCopy, to_device

LogprobsOf = Callable[
    [torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
]


class PendingLogprobs:
    """Logarithms on their way from the device."""

    def __init__(
        self, token_ids: torch.Tensor, chosen: torch.Tensor, top_ids: torch.Tensor, top: torch.Tensor
    ) -> None:
        """token_ids, chosen: `[M]`; top_ids, top: `[M, K]`."""
        self._copies = [HostCopy(tensor) for tensor in (token_ids, chosen, top_ids, top)]

    def result(self) -> Logprobs:
        """Wait until they are there."""
        token_ids, chosen, top_ids, top = (copy.wait().numpy() for copy in self._copies)
        return Logprobs(token_ids, chosen, top_ids, top)


def sampled_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: Int32Array, of: LogprobsOf
) -> PendingLogprobs:
    """Of the rows that asked. logits: `[N, vocab_size]` float32; token_ids: `[N]`; num_logprobs: `[N]`, -1 is off.

    of: `logprobs_of`, or what stands for it."""
    rows = to_device(np.flatnonzero(num_logprobs >= 0), logits.device)
    return PendingLogprobs(*of(logits[rows], token_ids[rows], int(num_logprobs.max())))


def logprobs_of(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`token_ids` `[M]` int64, their logarithms `[M]`, and ids and logarithms of the likeliest `[M, K]`.

    logits: `[M, vocab_size]` float32. `K` is `num_top`, or the size of the vocabulary if that is less.
    """
    whole = torch.logsumexp(logits, -1, keepdim=True)
    chosen = logits.gather(-1, token_ids.unsqueeze(1)) - whole
    values, ids = logits.topk(min(num_top, logits.shape[1]), dim=-1)
    return token_ids, chosen[:, 0], ids, values - whole
