"""What is done to logits before they are sampled: single edits first, then masks."""

import torch

from deeproot.engine.batch import LogitEdits, SamplingBatch, TokenMask
from deeproot.engine.transfer import to_device

_WORD_BITS = 32


def edited(logits: torch.Tensor, settings: SamplingBatch) -> torch.Tensor:
    """`logits`, `[N, vocab_size]` float32, with the batch's edits and masks; the same tensor if there are none.

    The penalty of repetitions is Keskar et al.'s (2019), as transformers has it; those of frequency and presence are
    OpenAI's. The order is vLLM's: bias, repetition, frequency and presence.
    """
    if settings.edits is None and settings.mask is None:
        return logits
    logits = logits.clone()
    if settings.edits is not None:
        _edit(logits, settings.edits)
    if settings.mask is not None:
        _mask(logits, settings.mask.result())
    return logits


def _edit(logits: torch.Tensor, edits: LogitEdits) -> None:
    device = logits.device
    at = (to_device(edits.rows, device), to_device(edits.token_ids, device))
    repetition = to_device(edits.repetition, device)
    values = logits[at] + to_device(edits.bias, device)
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[at] = values - to_device(edits.penalty, device)


def _mask(logits: torch.Tensor, mask: TokenMask) -> None:
    vocab_size = logits.shape[1]
    num_words = -(-vocab_size // _WORD_BITS)
    if mask.words.shape != (len(mask.rows), num_words):
        raise ValueError(
            f"a mask of {len(mask.rows)} rows over {vocab_size} tokens has {num_words} words a row, "
            f"got an array of {mask.words.shape}"
        )
    words = to_device(mask.words, logits.device)
    shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=logits.device)
    allowed = ((words.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)[:, :vocab_size]
    rows = to_device(mask.rows, logits.device)
    logits[rows] = logits[rows].masked_fill(~allowed, float("-inf"))
