"""Makes the report of an assembly."""

from collections.abc import Sequence

from deeproot.runtime.context.items import Placement, Plan
from deeproot.runtime.context.linter import Linter
from deeproot.runtime.context.report import LintFinding, Report, SegmentReport, Variants
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.tokenise import Tokenised

_HOST_PARTS = ("policy", "constraint", "tools", "warning", "other", "archived")
"""Parts whose bytes the host writes for each call; all others are frozen when they are logged."""


def report_of(
    *,
    policy: str,
    plan: Plan,
    placements: Sequence[Placement],
    tokenised: Tokenised,
    untracked: Sequence[str],
    lint: Sequence[LintFinding],
) -> Report:
    """Put together what was decided and what came of it. `placements`: those of the plan, and the tools."""
    starts, sizes = _extents(placements, tokenised)
    segments = tuple(
        SegmentReport(
            placed.item.key,
            placed.zone,
            placed.item.authority,
            placed.item.channel,
            sizes[i],
            starts[i],
            placed.why,
            placed.item.source.uri,
            placed.item.source.payload_hash,
            placed.item.notes,
        )
        for i, placed in enumerate(placements)
    )
    zones = {zone: sum(s.tokens for s in segments if s.zone is zone) for zone in Zone}
    zones[Zone.LEAF] += int(tokenised.token_ids.size) - sum(zones.values())
    over = tuple(
        f"{zone} has {zones[zone]} tokens, over its share of {limit}"
        for zone, limit in plan.zone_limits.items()
        if zones[zone] > limit
    )
    conditions = sorted({c for p in placements if p.zone is Zone.ROOT for c in p.item.conditions})
    missing = [p.item.key for i, p in enumerate(placements) if not sizes[i] and p.item.text]
    return Report(
        policy=policy,
        tokens=int(tokenised.token_ids.size),
        budget=plan.budget_tokens,
        zone_tokens=zones,
        segments=segments,
        dropped=plan.drops,
        not_rendered=tuple(missing),
        verified_joints=tokenised.verified,
        unverified_joints=tokenised.unverified,
        unclean_controls=tokenised.unclean,
        untracked=tuple(untracked),
        lint=tuple(lint),
        variants=Variants(tuple(conditions)),
        notes=plan.notes + over,
    )


def lint_placements(
    placements: Sequence[Placement], tokenised: Tokenised, linter: Linter
) -> list[LintFinding]:
    """Volatile bytes in what the host wrote into root and trunk."""
    starts, _ = _extents(placements, tokenised)
    total = int(tokenised.token_ids.size)
    checked = [i for i, p in enumerate(placements) if p.zone is not Zone.LEAF and p.item.part in _HOST_PARTS]
    found = linter.check([placements[i].item.text for i in checked])
    return [
        LintFinding(placements[i].item.key, placements[i].zone, cause, excerpt, starts[i], total - starts[i])
        for i, stretches in zip(checked, found, strict=True)
        for cause, _, excerpt in stretches
    ]


def _extents(placements: Sequence[Placement], tokenised: Tokenised) -> tuple[list[int], list[int]]:
    """First token and size of each segment; a segment that is not rendered starts where the prompt ends."""
    index = {placed.item.key: i for i, placed in enumerate(placements)}
    starts = [int(tokenised.token_ids.size)] * len(placements)
    sizes = [0] * len(placements)
    for boundary in tokenised.boundaries:
        i = index.get(str(boundary.segment))
        if i is not None:
            starts[i] = min(starts[i], boundary.start)
            sizes[i] += boundary.end - boundary.start
    return starts, sizes
