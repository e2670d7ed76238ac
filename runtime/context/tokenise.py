"""Segments to ids: each piece encoded alone and cached by digest, each joint verified or reported."""

import re
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from deeproot.runtime.context.control_text import EMPTY, TextEncoder, control_tokens, swallows
from deeproot.runtime.context.spans import Span
from deeproot.runtime.context.spellings import any_of
from deeproot.runtime.context.tokenizer import TokenIds, Tokenizer

SEPARATORS = ("\n\n", "\n", "\n\n---\n\n", " \n\n", "\n\n## \n\n", "\x1e")
"""What may stand between two parts of one message, in the order in which they are tried."""
_WINDOW = 64
_REMEMBERED = 50_000
"""Verdicts on joints, and literals, that are kept at most."""


class Boundary(NamedTuple):
    """Tokens `start` to `end` are one segment's. `segment` None: the prompt that asks the model to speak."""

    segment: Hashable
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Joint:
    """A place where two segments meet in running text and where the ids are not those of the whole text."""

    token: int
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The ids of a rendering. `verified`: joints in running text that hold; `unverified`: those that do not.

    `unclean`: control tokens whose neighbours are not encoded as they would be alone.
    """

    token_ids: TokenIds
    boundaries: tuple[Boundary, ...]
    verified: int
    unverified: tuple[Joint, ...]
    unclean: tuple[str, ...]


class SegmentTokenizer:
    """A tokenizer with a cache; give one to all working sets of a model. Not for several threads at once.

    `cache_tokens`: how many ids to keep, least recently used go first. Forgetting costs time only.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache_tokens: int = 8_000_000) -> None:
        self._tokenizer = tokenizer
        self.controls = {token.text: token for token in control_tokens(tokenizer)}
        every = list(self.controls.values())
        self.control_ids = {token.text: np.array([token.token_id], dtype=np.int32) for token in every}
        self._encoders = (
            TextEncoder(tokenizer, every),
            # The model's own words: its shorthands (`<think>`) come back as the ids that it wrote.
            TextEncoder(tokenizer, [token for token in every if token.special]),
        )
        self._control = re.compile(f"({any_of(self.controls)})")
        self._cache: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._cached_tokens = 0
        self._limit = cache_tokens
        self._joints: dict[bytes, bool] = {}
        self._swallows: dict[str, tuple[bool, bool] | None] = {}
        self._literals: dict[str, list[str]] = {}

    def encode(self, text: str, *, model_written: bool = False) -> TokenIds:
        """`[num_tokens]` ids of text that yields no control token, read-only."""
        key = self._digest(text, model_written)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        ids = self._encoders[model_written](text)
        ids.setflags(write=False)
        self._cache[key] = ids
        self._cached_tokens += ids.size
        while self._cached_tokens > self._limit and len(self._cache) > 1:
            self._cached_tokens -= self._cache.popitem(last=False)[1].size
        return ids

    def count(self, text: str) -> int:
        """How many tokens `text` is by itself."""
        return self.encode(text).size

    def joint_holds(self, left: str, right: str) -> bool:
        """Whether the ids of `left` and of `right`, put together, are the ids of the whole."""
        key = self._digest(left, False) + self._digest(right, False)
        if key not in self._joints:
            if len(self._joints) > _REMEMBERED:
                self._joints.clear()
            # Not cached as segments: only the verdict is needed again.
            whole = self._encoders[0](left + right)
            self._joints[key] = bool(
                np.array_equal(whole, np.concatenate([self.encode(left), self.encode(right)]))
            )
        return self._joints[key]

    def separator(self, left: str, right: str) -> str:
        """What to put between two parts so that no token reaches over the joint; the first choice if nothing helps."""
        for separator in SEPARATORS:
            if self.joint_holds(left, separator + right):
                return separator
        return SEPARATORS[0]

    def join(self, spans: Sequence[Span], model_written: Collection[Hashable] = ()) -> Tokenised:
        """The ids of a rendering, piece by piece. `model_written`: segments that are the model's own words.

        Every id lies inside its own segment, whatever stands in the others; where the ids of the whole text would
        differ at a joint, the joint is reported.
        """
        joiner = _Joiner(self, frozenset(model_written))
        for text, segment, literal in _merged(spans):
            if not literal:
                joiner.add_text(text, segment)
                continue
            for piece in self._split_literal(text):
                if piece in self.controls:
                    joiner.add_control(piece, segment)
                elif piece:
                    joiner.add_text(piece, segment)
        return joiner.finish()

    def side_effects(self, control: str) -> tuple[bool, bool] | None:
        """See `control_text.swallows`; asked once for each control token."""
        if control not in self._swallows:
            self._swallows[control] = swallows(self._tokenizer, self.controls[control], self._encoders[0])
        return self._swallows[control]

    def _split_literal(self, text: str) -> list[str]:
        if text not in self._literals:
            if len(self._literals) > _REMEMBERED:
                self._literals.clear()
            self._literals[text] = self._control.split(text)
        return self._literals[text]

    @staticmethod
    def _digest(text: str, flag: bool) -> bytes:
        return blake3(text.encode("utf-8", "surrogatepass")).digest(16) + (b"\1" if flag else b"\0")


def _merged(spans: Sequence[Span]) -> list[tuple[str, Hashable, bool]]:
    """Spans with neighbours of one kind and segment put together, and no control token cut between two segments."""
    merged: list[tuple[str, Hashable, bool]] = []
    for span in spans:
        if merged and merged[-1][1] == span.segment and merged[-1][2] == span.literal:
            merged[-1] = (merged[-1][0] + span.text, span.segment, span.literal)
        else:
            merged.append((span.text, span.segment, span.literal))
    return merged


class _Joiner:
    """Collects pieces left to right; a run is the text between two control tokens."""

    def __init__(self, source: SegmentTokenizer, model_written: frozenset[Hashable]) -> None:
        self._source = source
        self._model_written = model_written
        self._run: list[tuple[str, Hashable]] = []
        self._arrays: list[TokenIds] = []
        self._starts: list[tuple[Hashable, int]] = []
        """Where each stretch of one segment begins."""
        self._length = 0
        self._swallow_next = False
        self._verified = 0
        self._unverified: list[Joint] = []
        self._unclean: dict[str, None] = {}

    def add_text(self, text: str, segment: Hashable) -> None:
        if self._swallow_next:
            text = text.lstrip()
            if not text:
                return
            self._swallow_next = False
        if self._run and self._run[-1][1] == segment:
            self._run[-1] = (self._run[-1][0] + text, segment)
        else:
            self._run.append((text, segment))

    def add_control(self, control: str, segment: Hashable) -> None:
        effects = self._source.side_effects(control)
        if effects is None:
            self._unclean[control] = None
        left, right = effects or (False, False)
        while left and self._run and not self._run[-1][0].rstrip():
            self._run.pop()
        if left and self._run:
            self._run[-1] = (self._run[-1][0].rstrip(), self._run[-1][1])
        self._end_run()
        self._emit(self._source.control_ids[control], segment)
        self._swallow_next = right

    def finish(self) -> Tokenised:
        self._end_run()
        ids = np.concatenate([EMPTY, *self._arrays])
        return Tokenised(
            ids, self._boundaries(), self._verified, tuple(self._unverified), tuple(self._unclean)
        )

    def _end_run(self) -> None:
        run = self._run
        for i, (text, segment) in enumerate(run):
            if i:
                self._check_joint(run, i)
            self._emit(self._source.encode(text, model_written=segment in self._model_written), segment)
        self._run = []

    def _check_joint(self, run: list[tuple[str, Hashable]], at: int) -> None:
        left, right = run[at - 1][0], run[at][0]
        # A short piece cannot vouch for its neighbours: what merges over it is seen only with more text around.
        before, after = at - 2, at + 1
        while len(left) < _WINDOW and before >= 0:
            left, before = run[before][0] + left, before - 1
        while len(right) < _WINDOW and after < len(run):
            right, after = right + run[after][0], after + 1
        if self._source.joint_holds(left, right):
            self._verified += 1
        else:
            self._unverified.append(Joint(self._length, left[-12:], right[:12]))

    def _emit(self, ids: TokenIds, segment: Hashable) -> None:
        if not ids.size:
            return
        if not self._starts or self._starts[-1][0] != segment:
            self._starts.append((segment, self._length))
        self._arrays.append(ids)
        self._length += ids.size

    def _boundaries(self) -> tuple[Boundary, ...]:
        ends = [*(start for _, start in self._starts[1:]), self._length][: len(self._starts)]
        return tuple(
            Boundary(segment, start, end) for (segment, start), end in zip(self._starts, ends, strict=True)
        )
