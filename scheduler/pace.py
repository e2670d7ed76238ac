"""How many tokens of prompts a step may compute beside requests that write, so that these keep their pace."""

from deeproot.scheduler.flight import Step

_NEWEST = 0.5
"""Weight of the newest step in what is expected of the next."""
_MARGIN = 0.9
"""Part of the target that is planned for: steps take a little longer than expected as often as a little less."""
_LEAST = 16
"""Tokens of prompts that each step computes, whatever the target: else a prompt would never be ready."""
_CLOCK_S = 1e-9
"""What a clock can tell apart."""
_FIRST = 256
"""As long as nothing has been measured."""


class Pace:
    """Expects of a step a time for the tokens that are written and, for each token of prompts, a time more.

    The latter grows with the prompt, since its tokens attend to all before them: it is taken from the newest steps.
    """

    def __init__(self, target_s: float | None) -> None:
        """target_s: how long a step may take in which requests write; None: as long as it takes."""
        self._target_s = target_s
        self._writing_s: float | None = None
        self._prompt_token_s: float | None = None

    def landed(self, step: Step, seconds: float) -> None:
        """A step has landed that took so long."""
        num_tokens = len(step.batch.input_ids)
        num_prompt = 0 if num_tokens == len(step.rows) else int(step.extend[step.certain > 1].sum())
        self.note(num_tokens - num_prompt, num_prompt, seconds)

    def note(self, num_writing: int, num_prompt: int, seconds: float) -> None:
        """A step took so long for so many tokens of requests that write, and of prompts."""
        if not num_prompt:
            self._writing_s = _blend(self._writing_s, seconds)
        elif num_prompt >= _LEAST:
            writing_s = min(self._writing_s or 0.0, seconds / 2) if num_writing else 0.0
            token_s = max((seconds - writing_s) / num_prompt, _CLOCK_S)
            self._prompt_token_s = _blend(self._prompt_token_s, token_s)

    def most(self, budget: int) -> int:
        """Tokens of prompts that a step of at most `budget` of them may compute beside requests that write."""
        if self._target_s is None:
            return budget
        if self._prompt_token_s is None:
            return min(budget, _FIRST)
        left_s = self._target_s * _MARGIN - (self._writing_s or 0.0)
        return min(budget, max(_LEAST, int(left_s / self._prompt_token_s)))


def _blend(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST * (newest - before)
