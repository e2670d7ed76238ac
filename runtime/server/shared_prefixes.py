"""The segments that the operator has declared to be shared by all tenants, and how prompts are held against them."""

from collections.abc import Sequence

from deeproot.engine.batch import Int32Array
from deeproot.engine.radix_node import TOKEN_BYTES


class SharedPrefixes:
    """Beginnings of prompts. A prompt is of a segment only if it begins with all of it."""

    def __init__(self, segments: Sequence[Int32Array] = ()) -> None:
        """segments: int32, shape [tokens] each."""
        self.segments = tuple(segments)
        self._longest_first = sorted((one.tobytes() for one in segments), key=len, reverse=True)

    def num_shared(self, ids: bytes) -> int:
        """Tokens of the longest segment that a prompt, int32 bytes, begins with; 0: of none."""
        found = next((one for one in self._longest_first if ids.startswith(one)), b"")
        return len(found) // TOKEN_BYTES
