"""The strategy that replaces everything before the newest turns by an audited checkpoint."""

from dataclasses import dataclass

from deeproot.runtime.context.checkpoint.files import Files
from deeproot.runtime.context.checkpoint.ledger import LedgerLimits
from deeproot.runtime.context.checkpoint.make import AuditedCheckpoint, ledger_checkpoint, make_checkpoint
from deeproot.runtime.context.checkpoint.render import record_body
from deeproot.runtime.context.compaction.evidence import render_evidence
from deeproot.runtime.context.compaction.extractor import extract_evidence
from deeproot.runtime.context.compaction.strategy import Proposal, Span, Tools, Unit

_MILESTONES = (40, 20, 10, 5, 2, 0)
"""How many a ledger has, until it fits."""
_SHARE = 0.5
"""Of the room, for the checkpoint itself; the template of negative evidence has the rest."""
_FEWEST = 48


@dataclass(frozen=True, slots=True)
class StructuredCheckpoint:
    """Goal and constraints stay in the root; milestones, hypothesis and artifacts pass the gates before anything goes.

    `files`: the workspace (None: the file versions in the log). A model's checkpoint that is refused twice, or does not
    fit, gives way to the deterministic ledger, with as many milestones as fit.
    """

    files: Files | None = None

    @property
    def name(self) -> str:
        return "checkpoint"

    @property
    def unit(self) -> Unit:
        return Unit.ALL

    async def propose(self, span: Span, tools: Tools) -> Proposal:
        room = max(_FEWEST, int(span.max_tokens * _SHARE))
        text, notes = await self._checkpoint(span, tools, room)
        left = max(_FEWEST, span.max_tokens - tools.count(text))
        return Proposal(
            f"{text}\n{render_evidence(extract_evidence(span.turns, span.query), left, tools.count)}", notes
        )

    async def _checkpoint(self, span: Span, tools: Tools, room: int) -> tuple[str, tuple[str, ...]]:
        notes: tuple[str, ...] = ()
        if tools.model is not None:
            made = await make_checkpoint(
                tools.log, span.upto, client=tools.model, files=self.files, max_tokens=max(256, 2 * room)
            )
            notes = _notes(made)
            text = record_body(tools.log, made)
            if made.source == "model" and tools.count(text) <= room:
                return text, notes
        for most in _MILESTONES:
            limits = LedgerLimits(milestones=most, artifacts=max(1, most), hypothesis=min(1_000, 2 * room))
            text = record_body(
                tools.log, ledger_checkpoint(tools.log, span.upto, files=self.files, limits=limits)
            )
            if tools.count(text) <= room:
                break
        return text, notes


def _notes(made: AuditedCheckpoint) -> tuple[str, ...]:
    """What was wrong with the model's answers."""
    tried = [attempt.error or "; ".join(map(str, attempt.reasons)) for attempt in made.attempts]
    return tuple(f"checkpoint refused: {why}" for why in tried)
