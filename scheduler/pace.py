"""How many tokens of prompts a step may compute beside requests that write, so that these keep their pace."""

import math

import numpy as np

from deeproot.scheduler.flight import Step

_WRITING = 0.25
"""Weight of the newest step without prompts in what is expected of the next."""
_NEWEST, _NEWEST_DEVIATION = 0.5, 0.25
"""The same of steps with prompts, and of how far they were from what was expected."""
_DEVIATIONS = 2.0
"""So many mean deviations more than expected are planned for: on a busy machine steps differ."""
_MARGIN = 0.9
"""Part of the target that is planned for."""
_LEAST = 16
"""Tokens of prompts that each step computes, whatever the target: else a prompt would never be ready."""
_CLOCK_S = 1e-9
"""What a clock can tell apart."""
_FIRST = 64
"""As long as nothing has been measured."""


class Depth:
    """How much dearer a token of a prompt is for each token that it attends to, as a share of what it costs without any.

    A line through the costs of late steps' tokens over their mean contexts; steps of about one context say nothing of it.
    """

    _KEPT = 0.98
    """Weight of a step in the line, relative to the next one's."""
    _LEAST_SPREAD = 0.1
    """Of the contexts, their standard deviation by their mean."""
    _LEAST_BASE = 0.02
    """Of the mean cost, what a token costs without any context, at least."""

    def __init__(self) -> None:
        self.share = 0.0
        self._sums = np.zeros(5)
        """Of the weights, contexts, costs, squares of contexts, contexts times costs."""

    def note(self, context: float, token_s: float) -> None:
        """A step's tokens attended to so many each, on average, and took so long each."""
        self._sums = self._KEPT * self._sums + np.array(
            (1.0, context, token_s, context**2, context * token_s)
        )
        mean_x, mean_y, mean_xx, mean_xy = (self._sums[1:] / self._sums[0]).tolist()
        variance = mean_xx - mean_x**2
        if variance > (self._LEAST_SPREAD * mean_x) ** 2:
            slope = max(0.0, (mean_xy - mean_x * mean_y) / variance)
            self.share = slope / max(mean_y - slope * mean_x, self._LEAST_BASE * mean_y)


class Pace:
    """Expects of a step a time for the tokens that are written and more for those of prompts.

    The latter by their number and by what they attend to (`Depth`), at the speed of the newest steps, and with as much
    caution as these were apart (as TCP plans its timeouts: Jacobson, "Congestion Avoidance and Control", 1988).
    """

    def __init__(self, target_s: float | None) -> None:
        """target_s: how long a step may take in which requests write; None: as long as it takes."""
        self._target_s = target_s
        self._writing_s: float | None = None
        self._depth = Depth()
        self._unit_s: float | None = None
        """A token of a prompt that attends to none."""
        self._deviation_s = 0.0

    def landed(self, step: Step, seconds: float) -> None:
        """A step has landed that took so long."""
        num_tokens = len(step.batch.input_ids)
        if num_tokens == len(step.rows):
            self.note(num_tokens, 0, 0.0, seconds)
            return
        prompts = step.certain > 1
        extend = step.extend[prompts]
        pairs = float((extend * (step.batch.seq_lens[prompts] - extend / 2)).sum())
        num_prompt = int(extend.sum())
        self.note(num_tokens - num_prompt, num_prompt, pairs, seconds)

    def note(self, num_writing: int, num_prompt: int, pairs: float, seconds: float) -> None:
        """A step took so long for so many tokens of requests that write, and of prompts.

        pairs: of a token of the prompts and one that it attends to.
        """
        if not num_prompt:
            before = self._writing_s
            self._writing_s = seconds if before is None else before + _WRITING * (seconds - before)
        elif num_prompt >= _LEAST:
            writing_s = 0.0
            if num_writing and self._writing_s is not None:
                self._writing_s = min(self._writing_s, seconds)
                writing_s = min(self._writing_s, seconds / 2)
            self._note_prompts(num_prompt, pairs, max(seconds - writing_s, num_prompt * _CLOCK_S))

    def _note_prompts(self, num_tokens: int, pairs: float, seconds: float) -> None:
        context, token_s = pairs / num_tokens, seconds / num_tokens
        before = 1 + self._depth.share * context
        if self._unit_s is None:
            self._depth.note(context, token_s)
            self._unit_s = token_s
            self._deviation_s = token_s / 4
            return
        # A step that was held up by something else says little of depth.
        self._depth.note(context, min(token_s, 2 * self._unit_s * before))
        after = 1 + self._depth.share * context
        expected_s, unit_s = self._unit_s * before / after, token_s / after
        self._unit_s = expected_s + _NEWEST * (unit_s - expected_s)
        apart = abs(unit_s - expected_s)
        deviation_s = self._deviation_s * before / after
        self._deviation_s = deviation_s + _NEWEST_DEVIATION * (apart - deviation_s)

    def most(self, budget: int, context: int = 0) -> int:
        """Tokens of prompts that a step of at most `budget` of them may compute beside requests that write.

        context: tokens that are computed already of the prompt that goes on.
        """
        if self._target_s is None:
            return budget
        if self._unit_s is None:
            return min(budget, _FIRST)
        left_s = self._target_s * _MARGIN - (self._writing_s or 0.0)
        units = max(0.0, left_s) / max(self._unit_s + _DEVIATIONS * self._deviation_s, _CLOCK_S)
        # n tokens cost n (1 + share (context + n / 2)) units.
        share = self._depth.share
        linear = 1 + share * context
        count = 2 * units / (linear + math.sqrt(linear**2 + 2 * share * units))
        return min(budget, max(_LEAST, int(count)))
