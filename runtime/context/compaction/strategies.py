"""The seven strategies. Each fills the same template; they differ in what they replace and what they are told."""

from dataclasses import dataclass

from deeproot.runtime.context.chat_model import ModelError
from deeproot.runtime.context.checkpoint.files import Files
from deeproot.runtime.context.compaction.checkpointing import StructuredCheckpoint
from deeproot.runtime.context.compaction.evidence import (
    Evidence,
    EvidenceError,
    check_evidence,
    completed,
    parse_evidence,
    render_evidence,
    schema,
)
from deeproot.runtime.context.compaction.extractor import extract_evidence, grounds_of
from deeproot.runtime.context.compaction.prompts import retry_messages, summary_messages
from deeproot.runtime.context.compaction.strategy import (
    Proposal,
    Span,
    Strategy,
    Tools,
    Unit,
)

_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class NoSummary:
    """Only what costs no model: filters, previews, cleared results. What then does not fit, the layout archives."""

    @property
    def name(self) -> str:
        return "none"

    @property
    def unit(self) -> Unit:
        return Unit.NOTHING

    async def propose(self, span: Span, tools: Tools) -> Proposal:
        raise AssertionError("a strategy of Unit.NOTHING is not asked")


@dataclass(frozen=True, slots=True)
class Summary:
    """A filled template. `query`: told the task and the newest request. `cite`: every entry names its event.

    `keep_results`: newest tool results that stay whole, for strategies of single results. `input_tokens`: the most of a
    history that a model is shown.
    """

    name: str
    unit: Unit
    query: bool = False
    cite: bool = False
    keep_results: int = 0
    input_tokens: int = 24_000

    async def propose(self, span: Span, tools: Tools) -> Proposal:
        """The template as the model filled it, completed with what the log says; without a usable answer, the log's."""
        known = extract_evidence(span.turns, span.query if self.query else "")
        said, notes = (None, ()) if tools.model is None else await self._ask(span, tools)
        evidence = known if said is None else completed(said, known)
        return Proposal(render_evidence(evidence, span.max_tokens, tools.count), notes)

    async def _ask(self, span: Span, tools: Tools) -> tuple[Evidence | None, tuple[str, ...]]:
        """What the model says, checked; asked once more with the fault named, then given up."""
        assert tools.model is not None
        messages = summary_messages(
            span, tools.count, query=self.query, cite=self.cite, most_tokens=self.input_tokens
        )
        notes: list[str] = []
        for _ in range(_ATTEMPTS):
            try:
                answer = await tools.model.complete(
                    messages, max_tokens=max(512, 2 * span.max_tokens), json_schema=schema()
                )
            except ModelError as error:
                return None, (*notes, f"no model, the extractor's instead: {error}")
            try:
                evidence = parse_evidence(answer)
                check_evidence(evidence, grounds_of(span.turns), cited=self.cite)
            except EvidenceError as error:
                notes.append(f"summary refused: {error}")
                messages = retry_messages(messages, answer, str(error))
            else:
                return evidence, tuple(notes)
        return None, (*notes, "the extractor's instead")


PER_RESULT = Summary("per_result", Unit.RESULT)
JOINT = Summary("joint", Unit.RUN)
QUERY_AWARE = Summary("query_aware", Unit.RUN, query=True)
CITED = Summary("query_aware_cited", Unit.RUN, query=True, cite=True)
LAST_RESORT = Summary("last resort", Unit.ALL, query=True)
"""What is left where a strategy did not free enough; it is given no model."""
WINDOWED = Summary("windowed", Unit.RESULT, query=True, keep_results=6)


def strategies(files: Files | None = None) -> dict[str, Strategy]:
    """All seven by name. `files`: the workspace, for the checkpoint's gates (None: the file versions in the log)."""
    every: tuple[Strategy, ...] = (
        NoSummary(),
        PER_RESULT,
        JOINT,
        QUERY_AWARE,
        CITED,
        WINDOWED,
        StructuredCheckpoint(files),
    )
    return {one.name: one for one in every}
