"""Scratch: what stands in the cache and no later prompt begins with, such as dropped thinking or a child's branch."""

from dataclasses import dataclass

from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.tokenizer import TokenIds


@dataclass(frozen=True, slots=True)
class Scratch:
    """`sequence`: int32 ids that were computed. The first `kept` go on; the others can be freed at once."""

    sequence: TokenIds
    kept: int

    @property
    def tokens(self) -> int:
        """How many can be freed."""
        return int(self.sequence.size) - self.kept


def scratch(sequence: TokenIds, goes_on: TokenIds) -> Scratch:
    """What of `sequence` is scratch once the run goes on with prompt `goes_on`.

    Two phases of a turn: the model thinks and acts on a branch (`sequence`: prompt and reply), the action alone goes on
    (`goes_on`: the next prompt of a working set with `Thinking.SCRATCH`, or of a template that drops thinking). After a
    sub-agent: its last prompt and reply, and its parent's next prompt.
    """
    return Scratch(sequence, common_prefix(sequence, goes_on))
