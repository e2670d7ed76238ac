"""How fast the engine computes prompts, as its own steps show."""

import math

from deeproot.scheduler.flight import Flight

_WINDOW_TOKENS = 32_768
"""Older steps count less: by a factor of e for each that many tokens since."""


class PrefillRate:
    """Tokens a second of steps that compute prompts, the latest first of all."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._landed = 0.0

    def landed(self, flight: Flight, now: float) -> float:
        """A step has landed; it is noted if it computed prompts. Returns the seconds that it took."""
        step = flight.step
        # Steps in flight together run one after another.
        seconds = now - max(flight.launched, self._landed)
        if step.num_drafted is None and len(step.batch.input_ids) >= 2 * len(step.rows):
            self.note(len(step.batch.input_ids), seconds)
        self._landed = now
        return seconds

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step has computed that many tokens in that time."""
        kept = math.exp(-num_tokens / _WINDOW_TOKENS)
        self._tokens = self._tokens * kept + num_tokens
        self._seconds = self._seconds * kept + seconds

    @property
    def tokens_per_second(self) -> float | None:
        """None as long as nothing has been measured."""
        return self._tokens / self._seconds if self._seconds > 0 else None
