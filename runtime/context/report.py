"""What a working set holds, why, and what it does not hold."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deeproot.runtime.context.items import Drop
from deeproot.runtime.context.segments import Authority, Channel, Zone
from deeproot.runtime.context.tokenise import Joint


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment: its size, its place, and why it is there."""

    key: str
    zone: Zone
    authority: Authority
    channel: Channel
    tokens: int
    start: int
    """Of its first token; segments that the template splits have several stretches."""
    why: str
    source: str
    payload_hash: str
    """Under which the archive has the raw payload."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A volatile stretch where nothing should change, and what a change of it costs."""

    key: str
    zone: Zone
    cause: str
    """`timestamp`, `uuid`, `counter`, `hex`, `temp path`, `address`, `unordered mapping`, `changed`."""
    excerpt: str
    token: int
    """Of the segment's first token: from there on the prompt is computed anew when it changes."""
    cost_tokens: int


@dataclass(frozen=True, slots=True)
class Variants:
    """How many different roots the conditions before the cache boundary make."""

    conditions: tuple[str, ...]

    @property
    def keys(self) -> int:
        return int(2 ** len(self.conditions))

    def __str__(self) -> str:
        if not self.conditions:
            return "no conditions before the cache boundary: 1 variant of the root"
        names = ", ".join(self.conditions)
        return f"{len(self.conditions)} condition(s) before the cache boundary ({names}): {self.keys} variants of the root"


@dataclass(frozen=True, slots=True)
class Report:
    """The account of one assembly."""

    policy: str
    tokens: int
    budget: int | None
    zone_tokens: Mapping[Zone, int]
    segments: tuple[SegmentReport, ...]
    dropped: tuple[Drop, ...]
    not_rendered: tuple[str, ...]
    """Segments of which the template shows nothing."""
    verified_joints: int
    unverified_joints: tuple[Joint, ...]
    unclean_controls: tuple[str, ...]
    """Control tokens next to which the tokenizer encodes text otherwise than alone."""
    untracked: tuple[str, ...]
    """Where the template lost track of whose characters they are; contents were escaped for it."""
    lint: tuple[LintFinding, ...]
    variants: Variants
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, in a fixed order."""
        return {**asdict(self), "variant_keys": self.variants.keys}

    def __str__(self) -> str:
        limit = f" of {self.budget}" if self.budget is not None else ""
        lines = [f"{self.policy}: {self.tokens} tokens{limit}"]
        lines += [
            f"  {zone.value:5} {count:7} {_percent(count, self.tokens)}"
            for zone, count in self.zone_tokens.items()
        ]
        for s in self.segments:
            extra = f" ({'; '.join(s.notes)})" if s.notes else ""
            lines.append(
                f"  {s.start:7} {s.tokens:6} {s.zone.value:5} {int(s.authority)} {s.key:8} {s.why}: {s.source}{extra}"
            )
        lines += [
            f"  left out {d.key} ({d.tokens} tokens): {d.why}; archive {d.payload_hash[:16]}"
            for d in self.dropped
        ]
        lines += [
            f"  lint: {f.cause} {f.excerpt!r} in {f.key} ({f.zone.value}): {f.cost_tokens} tokens a change"
            for f in self.lint
        ]
        lines += [
            f"  joint not verified at token {j.token}: {j.left!r} | {j.right!r}"
            for j in self.unverified_joints
        ]
        lines += [f"  the template shows nothing of {key}" for key in self.not_rendered]
        lines += [f"  text beside {control!r} is not encoded as alone" for control in self.unclean_controls]
        lines += [f"  the template lost track: {place}" for place in self.untracked]
        lines += [f"  {note}" for note in (*self.notes, str(self.variants))]
        return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:5.1f}%" if whole else ""
