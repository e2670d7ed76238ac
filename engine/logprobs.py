"""How likely tokens were, by the model's own logits."""

import numpy as np
import torch

from deeproot.engine.batch import Int32Array, Int64Array, Logprobs


def sampled_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: Int32Array) -> Logprobs:
    """Of the rows that asked. logits: `[N, vocab_size]` float32; token_ids: `[N]`; num_logprobs: `[N]`, -1 is off."""
    asked = np.flatnonzero(num_logprobs >= 0)
    rows = torch.from_numpy(asked).to(logits.device)
    return logprobs_of(logits[rows], token_ids[rows], int(num_logprobs.max()))


def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    """logits: `[M, vocab_size]` float32; token_ids: `[M]` int64."""
    whole = torch.logsumexp(logits, -1, keepdim=True)
    chosen = logits.gather(-1, token_ids.unsqueeze(1)) - whole
    values, ids = logits.topk(min(num_top, logits.shape[1]), dim=-1)
    return Logprobs(
        token_ids=_host(token_ids),
        chosen=chosen[:, 0].cpu().numpy(),
        top_ids=_host(ids),
        top=(values - whole).cpu().numpy(),
    )


def concatenated(parts: list[Logprobs]) -> Logprobs:
    """Several with the same `K` as one; at least one."""
    return Logprobs(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        chosen=np.concatenate([part.chosen for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top=np.concatenate([part.top for part in parts]),
    )


def _host(ids: torch.Tensor) -> Int64Array:
    return ids.cpu().numpy()
