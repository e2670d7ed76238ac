"""What a cache is asked, and what it answers."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from deeproot.runtime.context.tokenizer import TokenIds


def _no_tokens() -> TokenIds:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of a workload. `prompt`, `answer`: int32, shape [tokens].

    `time_s`: when it is made, from any origin. `ends`: how many tokens of the prompt lie before the end of each content
    part, ascending; `marks`: which of these ends are marked as cache breakpoints, for hosted rules that ask for them.
    """

    session: str
    time_s: float
    prompt: TokenIds
    answer: TokenIds = field(default_factory=_no_tokens)
    ends: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt.size < 1:
            raise ValueError(f"call of session {self.session!r}: prompt is empty; give at least one token")
        if any(a >= b for a, b in zip((0, *self.ends), self.ends, strict=False)):
            raise ValueError(f"call of session {self.session!r}: ends must ascend from above 0")
        if self.ends and self.ends[-1] > self.prompt.size:
            raise ValueError(
                f"call of session {self.session!r}: ends go beyond the prompt's {self.prompt.size} tokens"
            )
        if not set(self.marks) <= set(self.ends):
            raise ValueError(f"call of session {self.session!r}: each of marks must be one of ends")

    @property
    def computed_ids(self) -> TokenIds:
        """Tokens whose K and V exist once the call is answered: all but the last, which is never fed back."""
        return np.concatenate((self.prompt, self.answer[:-1])) if self.answer.size else self.prompt


@dataclass(frozen=True, slots=True)
class Served:
    """`cached`: prompt tokens that the cache had. `written`: prompt tokens billed as written to it, of hosted rules only.

    `refused`: the call does not fit in the cache's memory at all, and all of it counts as computed.
    """

    cached: int
    written: int = 0
    refused: bool = False


class CacheModel(Protocol):
    """A prefix cache that serves calls one after another."""

    @property
    def name(self) -> str:
        """How tables call it."""

    def serve(self, call: Call) -> Served:
        """Look the prompt up, then keep what the rules keep of prompt and answer."""
