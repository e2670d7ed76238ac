"""Arithmetic of compaction: what a ratio, a loss rate and a horizon come to. From the design's source."""

from collections.abc import Sequence


def staged_tokens(raw_tokens: float, ratio: float) -> float:
    """Tokens in the prompt of a history of `raw_tokens` at compression ratio C_r = raw / staged."""
    if ratio <= 0:
        raise ValueError(f"ratio is {ratio}; give raw tokens over staged tokens, more than 0")
    return raw_tokens / ratio


def compression_ratio(raw_tokens: float, staged: float) -> float:
    """C_r of a history of `raw_tokens` that is staged in `staged` tokens."""
    if staged <= 0:
        raise ValueError(f"staged is {staged}; give tokens, more than 0")
    return raw_tokens / staged


def constraints_kept(loss: float, compactions: int, constraints: int = 1) -> float:
    """Probability that all of `constraints` survive, each lost with probability `loss` at each compaction: S_CR(k) for
    one of them."""
    if not 0 <= loss <= 1 or compactions < 0 or constraints < 0:
        raise ValueError(
            f"loss {loss}, compactions {compactions}, constraints {constraints}: give 0 to 1, and counts"
        )
    return float((1 - loss) ** (compactions * constraints))


def wasted_turns(turns: int, stale_share: float, turns_lost: float) -> float:
    """Turns lost to actions that rest on stale observations: `stale_share` of the turns, `turns_lost` each."""
    return turns * stale_share * turns_lost


def reductions(stages: Sequence[int]) -> list[float]:
    """Share of the first stage's tokens that is gone after each later stage."""
    if not stages or stages[0] <= 0:
        raise ValueError(f"stages is {list(stages)}; give tokens of each stage, the first more than 0")
    return [1 - tokens / stages[0] for tokens in stages[1:]]
