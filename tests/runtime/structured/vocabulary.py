"""A vocabulary of bytes, and outputs that a random model writes under a grammar."""

import random

import numpy as np

from deeproot.engine.grammar import TokenBytes, mask_width
from deeproot.engine.grammar_llguidance import LLGuidanceBackend

END = 256
SPECIAL = 257
"""A control token that no text can spell."""
_WORDS = [b'{"', b'":', b'", "', b'"}', b": ", b", ", b"true", b"null", b"\n  ", b'\\"', b"]}", "é".encode()]
TOKENS = TokenBytes(
    pieces=[*(bytes([i]) for i in range(256)), b"<end>", b"<special>", *_WORDS],
    special_ids=frozenset([END, SPECIAL]),
    end_ids=frozenset([END]),
)
VOCAB_SIZE = len(TOKENS.pieces) + 30
"""More than there are tokens, as in many models."""


def make_backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(TOKENS, VOCAB_SIZE)


def allowed(mask: np.ndarray) -> np.ndarray:
    """Ids that a mask `[width]` allows."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:VOCAB_SIZE])


def write(
    backend: LLGuidanceBackend, grammar: str, seed: int, max_tokens: int = 400, ending: bytes = b""
) -> bytes | None:
    """What a random model writes until it ends; None if it has not ended after `max_tokens`.

    It likes to end, to close what is open, and to write `ending`, more than it would by chance.
    """
    rng = random.Random(seed)
    matcher = backend.fork(backend.compile(grammar))
    masks = np.zeros((1, mask_width(VOCAB_SIZE)), np.int32)
    output = b""
    eager = rng.random()
    for _ in range(max_tokens):
        backend.fill([matcher], masks)
        ids = allowed(masks[0]).tolist()
        assert ids, f"nothing is allowed after {output!r}"
        closing = [
            i
            for i in ids
            if i == END or (i < len(TOKENS.pieces) and TOKENS.pieces[i][:1] in (b'"', b"}", b"]"))
        ]
        following = ending[_overlap(output, ending) :][:1]
        if following and following[0] in ids:
            closing.append(following[0])
        token = rng.choice(closing if closing and rng.random() < eager else ids)
        assert token < len(TOKENS.pieces), "a row without a token was allowed"
        backend.accept([matcher], [token])
        assert backend.error(matcher) is None
        if token == END:
            return output
        output += TOKENS.pieces[token]
    return None


def _overlap(output: bytes, ending: bytes) -> int:
    """How much of `ending` stands at the end of `output`."""
    return next(size for size in range(len(ending), -1, -1) if output.endswith(ending[:size]))


def reads(backend: LLGuidanceBackend, grammar: str, *output: bytes | list[int]) -> bool:
    """Whether a grammar takes an output, bytes or ids, byte by byte, and can end after it."""
    matcher = backend.fork(backend.compile(grammar))
    masks = np.zeros((1, mask_width(VOCAB_SIZE)), np.int32)
    for token in [token for part in output for token in part]:
        backend.fill([matcher], masks)
        if token not in allowed(masks[0]):
            return False
        backend.accept([matcher], [token])
    backend.fill([matcher], masks)
    return END in allowed(masks[0])
