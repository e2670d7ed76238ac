"""From the log to what one model call sees."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deeproot.runtime.context.budget import check_total
from deeproot.runtime.context.control_text import EMPTY
from deeproot.runtime.context.envelope import WARNING, Defence, Envelopes
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.frozen_tools import frozen_tools
from deeproot.runtime.context.host_items import host_item
from deeproot.runtime.context.items import Item, LayoutPolicy, Placement, Plan, PlanContext
from deeproot.runtime.context.linter import Linter
from deeproot.runtime.context.messages import chat_messages, openai_messages
from deeproot.runtime.context.overhead import message_overhead, tools_overhead
from deeproot.runtime.context.pipeline_filter import PipelineFilter
from deeproot.runtime.context.report import Report
from deeproot.runtime.context.reporting import lint_placements, report_of
from deeproot.runtime.context.segments import Segment, Zone
from deeproot.runtime.context.span_programs import Prepared
from deeproot.runtime.context.spans import ChatMessage, Part, Span
from deeproot.runtime.context.stage_filter import StageFilter
from deeproot.runtime.context.staged_log import StagedLog
from deeproot.runtime.context.staging import Stager
from deeproot.runtime.context.status.techniques import NO_TECHNIQUES, Techniques
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.thinking import Thinking, thinking_rule
from deeproot.runtime.context.tokenise import SegmentTokenizer, Tokenised
from deeproot.runtime.context.tokenizer import TokenIds, Tokenizer

GENERATION_PROMPT = "generation_prompt"
_ENVELOPE = 120
"""Tokens of an envelope's tags and attributes, rather more than they are."""


@dataclass(frozen=True, slots=True)
class SegmentBoundary:
    """Tokens `start` to `end` of the prompt belong to segment `key`."""

    key: str
    zone: Zone
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Context:
    """What one call sees. `token_ids`: int32, shape [tokens]; `boundaries` cover it without gaps, in its order.

    `messages` and `tools` are the same for any OpenAI-compatible server.
    """

    segments: tuple[Segment, ...]
    token_ids: TokenIds
    boundaries: tuple[SegmentBoundary, ...]
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    report: Report

    def request(self, **options: Any) -> dict[str, Any]:
        """The body of a chat completion request; `options` (`model`, `temperature`, …) go in as they are."""
        body: dict[str, Any] = {"messages": list(self.messages), **options}
        if self.tools:
            body["tools"] = list(self.tools)
        return body


class WorkingSet:
    """Assembles the context of each call from an event log. A pure function of the log: a fresh one, on another
    machine, gives the same bytes.

    `tokenizer`: a `Tokenizer`, or a `SegmentTokenizer` shared with other working sets. `filters`: makes the filter
    that a log's tool results pass, of a function that counts tokens (None: they are staged as they came).
    `result_tokens`: longer tool results are staged as head and tail with a pointer (None: never). `keep_symbols`: what
    stays whole where the policy stages a source file as its skeleton. `techniques`: whether user messages and tool
    results say when they came, and results which call of their tool they answer. `thinking`: the template's way with it,
    or never staged. Staged items are kept for the log last used. For one thread.
    """

    def __init__(
        self,
        *,
        policy: LayoutPolicy,
        tokenizer: Tokenizer | SegmentTokenizer,
        template: ChatTemplate,
        defence: Defence = Defence.COMBINED,
        filters: Callable[[Callable[[str], int]], StageFilter] | None = PipelineFilter,
        result_tokens: int | None = 4000,
        keep_symbols: Collection[str] = (),
        techniques: Techniques = NO_TECHNIQUES,
        thinking: Thinking = Thinking.TEMPLATE,
        template_variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.policy = policy
        self._tokens = tokenizer if isinstance(tokenizer, SegmentTokenizer) else SegmentTokenizer(tokenizer)
        self._template = template
        self._variables = dict(template_variables or {})
        self._defence = defence
        self._envelopes = Envelopes(self._tokens.controls)
        self._filters = filters
        self._result_tokens = result_tokens
        self._linter = Linter()
        self._overhead = message_overhead(template, self._tokens)
        self._fixed: tuple[str, int] | None = None
        self._prepared: dict[Hashable, tuple[ChatMessage, Prepared]] = {}
        """Messages of the last call as the template sees them; most come again."""
        self._tools: tuple[str | None, tuple[Mapping[str, Any], ...], Prepared] | None = None
        self._keep_symbols = tuple(keep_symbols)
        self._techniques = techniques
        self._thinking = thinking
        self._host_words_in_results = (
            thinking is Thinking.TEMPLATE and thinking_rule(template).host_words_in_results
        )
        self._staged: StagedLog | None = None

    def assemble(self, log: EventLog, *, upto: int | None = None) -> Context:
        """The context of the next call after event `upto` (None: the newest).

        Raises `BudgetError` if it cannot fit, `TemplateError` if the template refuses the conversation.
        """
        staged = self.staged(log)
        items = staged.applied(upto).items
        context = self.plan_context(staged, items)
        plan = self._with_warning(self.policy.plan(items, context), context)
        messages = chat_messages(
            plan.placements, self._tokens.separator, host_words_in_results=self._host_words_in_results
        )
        spans, untracked = self._render(messages, plan)
        model_written = {placed.item.key for placed in plan.placements if placed.item.part == "assistant"}
        tokenised = self._tokens.join(spans, model_written)
        if plan.budget_tokens is not None:
            check_total(tokenised.token_ids.size, plan.budget_tokens)
        plan = replace(plan, notes=(*plan.notes, *staged.folder.unavailable))
        return self._context(plan, messages, tokenised, untracked)

    def staged(self, log: EventLog) -> StagedLog:
        """The log's items as this working set stages them, up to its newest event."""
        if self._staged is None or self._staged.log is not log:
            self._staged = StagedLog(log, self._new_stager(), self._keep_symbols)
        self._staged.read()
        return self._staged

    def plan_context(self, staged: StagedLog, items: Sequence[Item]) -> PlanContext:
        """What a policy needs beside `items` of `staged` to plan."""
        stager = staged.stager
        fixed = self._fixed_tokens(items)
        return PlanContext(
            self._tokens.count,
            self._overhead,
            fixed,
            stager.replacements,
            stager.repeats,
            staged.folder,
            staged.open_note,
        )

    def tokens_of_message(self, text: str, fields: str = "") -> int:
        """About what a message of this text takes, longer ones shortened as results are. `fields`: its tool calls."""
        size = self._tokens.count(text)
        around = self._overhead + _ENVELOPE + self._tokens.count(fields)
        return around + (size if self._result_tokens is None else min(size, self._result_tokens))

    def encode(self, text: str) -> TokenIds:
        """Ids of a text as a segment has them; int32, shape [tokens]."""
        return self._tokens.encode(text)

    def _new_stager(self) -> Stager:
        return Stager(
            count=self._tokens.count,
            overhead=self._overhead,
            envelopes=self._envelopes,
            defence=self._defence,
            result_tokens=self._result_tokens,
            stage_filter=self._filters(self._tokens.count) if self._filters is not None else None,
            techniques=self._techniques,
            thinking=self._thinking,
        )

    def _with_warning(self, plan: Plan, context: PlanContext) -> Plan:
        """The sentence that tool output is data, behind the last instruction of the root."""
        if not self._defence.warns:
            return plan
        warning = Placement(
            host_item("warning", WARNING, context, role="system"), Zone.ROOT, "tool output is data"
        )
        at = sum(
            placed.zone is Zone.ROOT and placed.item.part in ("policy", "other") for placed in plan.placements
        )
        placements = (*plan.placements[:at], warning, *plan.placements[at:])
        return replace(plan, placements=placements)

    def _render(self, messages: Sequence[ChatMessage], plan: Plan) -> tuple[list[Span], list[str]]:
        """The spans of the rendering; with contents escaped if the template loses track of text that needs it."""
        spans = self._render_once(messages, plan)
        lost = [span for span in spans if not span.tracked]
        if any(self._envelopes.escape(span.text) != span.text for span in lost):
            spans = self._render_once([self._escaped(message) for message in messages], plan)
        return spans, [span.text[:40] for span in lost]

    def _render_once(self, messages: Sequence[ChatMessage], plan: Plan) -> list[Span]:
        key = plan.tools_item.key if plan.tools_item is not None else None
        if self._tools is None or self._tools[:2] != (key, plan.tools):
            self._tools = (key, plan.tools, self._template.prepare_tools(plan.tools, key))
        kept: dict[Hashable, tuple[ChatMessage, Prepared]] = {}
        for message in messages:
            first = message.parts[0].segment
            known = self._prepared.get(first)
            same = known is not None and known[0] == message
            kept[first] = known if known is not None and same else (message, self._template.prepare(message))
        self._prepared = kept
        return self._template.render_prepared(
            [prepared for _, prepared in kept.values()], tools=self._tools[2], variables=self._variables
        )

    def _escaped(self, message: ChatMessage) -> ChatMessage:
        parts = tuple(Part(self._envelopes.escape(part.text), part.segment) for part in message.parts)
        fields = {key: _map_strings(value, self._envelopes.escape) for key, value in message.fields.items()}
        return ChatMessage(message.role, parts, fields)

    def _context(
        self, plan: Plan, messages: Sequence[ChatMessage], tokenised: Tokenised, untracked: Sequence[str]
    ) -> Context:
        placements = list(plan.placements)
        if plan.tools_item is not None:
            placements.append(Placement(plan.tools_item, Zone.ROOT, "tool schemas, sorted and frozen"))
        places = {placed.item.key: placed for placed in placements}
        ids: dict[str, list[TokenIds]] = {key: [] for key in places}
        boundaries = []
        for boundary in tokenised.boundaries:
            key = str(boundary.segment)
            if key not in places:
                boundaries.append(SegmentBoundary(GENERATION_PROMPT, Zone.LEAF, boundary.start, boundary.end))
                continue
            boundaries.append(SegmentBoundary(key, places[key].zone, boundary.start, boundary.end))
            ids[key].append(tokenised.token_ids[boundary.start : boundary.end])
        segments = tuple(_segment(placed, ids[placed.item.key]) for placed in placements)
        report = report_of(
            policy=self.policy.name,
            plan=plan,
            placements=placements,
            tokenised=tokenised,
            untracked=untracked,
            lint=lint_placements(placements, tokenised, self._linter),
        )
        tokenised.token_ids.setflags(write=False)
        return Context(
            segments,
            tokenised.token_ids,
            tuple(boundaries),
            tuple(openai_messages(messages, plan.placements)),
            plan.tools,
            report,
        )

    def _fixed_tokens(self, items: Sequence[Item]) -> int:
        """Tokens of every prompt: what the template makes of the tools, the warning, and the request to answer."""
        tools, item, _ = frozen_tools(items)
        key = item.text if item is not None else ""
        if self._fixed is None or self._fixed[0] != key:
            size = tools_overhead(self._template, self._tokens, tools, item, self._variables)
            self._fixed = (key, size)
        warning = self._tokens.count(WARNING) + self._overhead if self._defence.warns else 0
        return self._fixed[1] + warning


def _segment(placed: Placement, runs: Sequence[TokenIds]) -> Segment:
    item = placed.item
    ids = runs[0] if len(runs) == 1 else np.concatenate([EMPTY, *runs])
    return Segment(item.key, placed.zone, item.authority, item.channel, item.source, ids)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    return value
