"""Events to items: filtered, shortened if huge, enveloped, measured. Done once per event, in the log's order."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from deeproot.runtime.context.calls import calls_of
from deeproot.runtime.context.envelope import Defence, Envelopes, Provenance, iso_time
from deeproot.runtime.context.events import Event, EventKind, payload_hash, payload_text
from deeproot.runtime.context.frozen_tools import spell_tools
from deeproot.runtime.context.host_items import framed_status
from deeproot.runtime.context.items import Item, Part, Repeat, Replacement
from deeproot.runtime.context.preview import preview
from deeproot.runtime.context.segments import Authority, Channel, Source
from deeproot.runtime.context.source_uri import source_uri
from deeproot.runtime.context.stage_filter import StageFilter
from deeproot.runtime.context.status.marks import Marks
from deeproot.runtime.context.status.techniques import NO_TECHNIQUES, Techniques
from deeproot.runtime.context.thinking import (
    Thinking,
    fields_without_thinking,
    has_thinking,
    without_thinking,
)

_TRUST = {
    Authority.SUPERVISOR: "supervisor",
    Authority.VERIFIED: "verified",
    Authority.UNTRUSTED: "untrusted",
}


class Stager:
    """Holds what staging one log needs to remember: open calls, file versions seen, the first failure."""

    def __init__(
        self,
        *,
        count: Callable[[str], int],
        overhead: int,
        envelopes: Envelopes,
        defence: Defence,
        result_tokens: int | None,
        stage_filter: StageFilter | None,
        techniques: Techniques = NO_TECHNIQUES,
        thinking: Thinking = Thinking.TEMPLATE,
    ) -> None:
        self._count = count
        self._overhead = overhead
        self._envelopes = envelopes
        self._defence = defence
        self._result_tokens = result_tokens
        self._filter = stage_filter
        self._thinking = thinking
        self._marks = Marks(techniques, envelopes.attribute)
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._seen_task = False
        self._seen_failure = False
        self._items: dict[int, tuple[Item, Event]] = {}
        self.replacements: dict[str, Replacement] = {}
        self.views: dict[str, str] = {}
        """Items that show a file, by key, and its path."""
        self.repeats: dict[str, Repeat] = {}
        self._texts: dict[int, str] = {}
        """What stands in the envelope of each tool result."""

    def stage(self, event: Event, payload: bytes) -> Item | None:
        """The item of the next event of the log, or None if it is nothing for a prompt."""
        text = payload_text(payload)
        match event.kind:
            case EventKind.INSTRUCTION:
                return self._instruction(event, text)
            case EventKind.ASSISTANT:
                return self._assistant(event, text)
            case EventKind.TOOL_RESULT:
                return self._tool_result(event, text)
            case EventKind.FILE_VERSION:
                body = self._enveloped("artifact", text, event, Authority.VERIFIED)
                item = self._item(event, "artifact", "user", body, Authority.VERIFIED, Channel.ARTIFACT)
                self._items[event.seq] = (item, event)
                self.views[item.key] = item.source.uri
                return item
            case EventKind.DIAGNOSTIC:
                body = self._enveloped("observation", text, event, Authority.UNTRUSTED)
                return self._item(event, "diagnostic", "user", body, Authority.UNTRUSTED, Channel.OBSERVATION)
            case EventKind.STATE_CHANGE:
                return self._state(event, text)

    def _state(self, event: Event, text: str) -> Item | None:
        part: Part
        match event.data.get("part"):
            case "tombstone":
                part, words = "tombstone", self._envelopes.escape(text)
            case "status":
                kept = event.data.get("mode") == "append"
                words = self._envelopes.escape(text)
                part, words = ("status_kept", framed_status(words)) if kept else ("status", words)
            case _ if "name" in event.data:
                name = self._envelopes.attribute(str(event.data["name"]))
                part, words = "state", f"{name}: {self._envelopes.attribute(text)}"
            case _:
                return None
        return self._item(event, part, "user", words, Authority.VERIFIED, Channel.OBSERVATION)

    def _instruction(self, event: Event, text: str) -> Item:
        part: Part = event.data.get("part", "other")
        if part == "tools":
            return self._tools(event, text)
        role = str(event.data.get("role", "user"))
        if role in ("system", "developer"):
            part = "constraint" if part == "constraint" else "policy"
        else:
            if part == "skill":
                name = self._envelopes.attribute(str(event.data.get("name", "")))
                text = f'<skill name="{name}">\n{text}\n</skill>'
            elif part not in ("demo", "briefing"):
                part = "turn" if self._seen_task else "task"
                self._seen_task = True
                text = self._marks.on_user(text, event)
        return self._item(event, part, role, text, Authority.SUPERVISOR, Channel.INSTRUCTION)

    def _tools(self, event: Event, text: str) -> Item:
        try:
            spelled = spell_tools(text)
        except ValueError as error:
            raise ValueError(f"event {event.seq}: {error}") from None
        return self._item(event, "tools", "system", spelled, Authority.SUPERVISOR, Channel.INSTRUCTION)

    def _assistant(self, event: Event, text: str) -> Item:
        calls = calls_of(event)
        self._calls.update(calls)
        item = self._item(event, "assistant", "assistant", text, Authority.UNTRUSTED, Channel.OBSERVATION)
        if self._thinking is Thinking.SCRATCH and has_thinking(text, item.fields):
            item = self.resized(item, without_thinking(text), fields_without_thinking(item.fields))
        ids = [made for made in (*calls, event.call_id) if made is not None]
        return replace(item, call_ids=tuple(dict.fromkeys(ids)))

    def _schemas(self, event: Event, text: str) -> Item:
        """Tools that a search found: the host's own words, as those in the root are."""
        words = self._envelopes.escape(text)
        item = self._item(event, "observation", "tool", words, Authority.VERIFIED, Channel.INSTRUCTION)
        self._items[event.seq] = (item, event)
        self._texts[event.seq] = text
        return item

    def _tool_result(self, event: Event, text: str) -> Item:
        if event.data.get("part") == "schemas":
            return self._schemas(event, text)
        call = self._calls.get(event.call_id or "")
        self._marks.count(event, call)
        notes: tuple[str, ...] = ()
        same_as = None
        if self._filter is not None:
            filtered = self._filter.add(event, text, call)
            text, notes, same_as = filtered.text, filtered.notes, filtered.same_as
            if filtered.shows is not None:
                self.views[f"e{event.seq}"] = filtered.shows
        if self._result_tokens is not None:
            text, more = preview(text, self._result_tokens, self._count, event.payload_hash)
            notes += more
        body = self._enveloped("observation", text, event, Authority.UNTRUSTED, call)
        role = str(event.data.get("role", "tool"))
        item = self._item(event, "observation", role, body, Authority.UNTRUSTED, Channel.OBSERVATION, call)
        failed = event.exit_code not in (None, 0)
        first_failure = failed and not self._seen_failure
        self._seen_failure = self._seen_failure or failed
        item = replace(item, notes=notes, failed=failed, anchor=item.anchor or first_failure)
        self._items[event.seq] = (item, event)
        self._texts[event.seq] = text
        if same_as is not None:
            self.repeats[item.key] = Repeat(same_as, partial(self._repeat, item, same_as))
        self._note_superseded()
        return item

    def _repeat(self, item: Item, same_as: int, home: int) -> Item:
        """A repeat whose first is no longer staged: itself in full, or a pointer to the one that is in full now."""
        if home == item.seq:
            return self.stand_in(item, self._texts[same_as], "in full again: what it repeats is archived")
        return self.stand_in(item, f"[same output as #{home}]", f"repeats #{home}")

    def _note_superseded(self) -> None:
        for found in self._filter.take_superseded() if self._filter is not None else ():
            if found.seq not in self._items:
                continue
            item, _ = self._items[found.seq]
            shorter = self.stand_in(item, found.text, "superseded read")
            if shorter.tokens < item.tokens:
                self.replacements[item.key] = Replacement(shorter, found.since)

    def event_of(self, item: Item) -> Event:
        """The event of an item that shows a file or is a tool's result."""
        return self._items[item.seq][1]

    def stand_in(self, item: Item, text: str, note: str) -> Item:
        """The same tool result or file with other words in its envelope. `note`: what the report says of it."""
        tag = "artifact" if item.part == "artifact" else "observation"
        body = self._enveloped(tag, text, self.event_of(item), item.authority, uri=item.source.uri)
        size = item.tokens - self._count(item.text) + self._count(body)
        return replace(item, text=body, tokens=size, notes=(*item.notes, note))

    def resized(self, item: Item, text: str, fields: Mapping[str, Any]) -> Item:
        """The same message with other words and fields, and its size."""
        return replace(item, text=text, fields=fields, tokens=self._size(text, fields))

    def _size(self, text: str, fields: Mapping[str, Any]) -> int:
        extra = json.dumps(fields, ensure_ascii=False) if fields else ""
        return self._count(text) + (self._count(extra) if extra else 0) + self._overhead

    def result_text(self, seq: int) -> str | None:
        """What stands in the envelope of tool result `seq`; of a repeat the output itself. None for all else."""
        repeat = self.repeats.get(f"e{seq}")
        return self._texts.get(seq if repeat is None else repeat.same_as)

    def escaped(self, text: str) -> str:
        """Outside words as a prompt shows them."""
        return self._envelopes.escape(text)

    def record(self, text: str, covers: Sequence[int], by: str) -> Item:
        """A stand-in for several events, at the place of the first."""
        source = f"compaction://{by}"
        events = f"{covers[0]}-{covers[-1]}"
        body = self._envelopes.frame("archived", text, [("source", source), ("events", events)])
        digest = payload_hash(text.encode("utf-8", "replace"))
        return Item(
            key=f"r{covers[0]}.{digest[:8]}",
            seq=covers[0],
            time_ns=0,
            kind=EventKind.STATE_CHANGE,
            part="record",
            role="user",
            text=body,
            fields={},
            tokens=self._count(body) + self._overhead,
            authority=Authority.UNTRUSTED,
            channel=Channel.OBSERVATION,
            source=Source(source, f"e{events}", "untrusted", "", digest),
            newest=covers[-1],
        )

    def _enveloped(
        self,
        tag: str,
        text: str,
        event: Event,
        authority: Authority,
        call: Mapping[str, Any] | None = None,
        uri: str | None = None,
    ) -> str:
        body = text
        if self._defence.marks:
            source = uri or source_uri(event, call)
            trust = _TRUST[authority]
            provenance = Provenance(
                source, event.time_ns, event.payload_hash, trust, event.exit_code, event.seq
            )
            body = self._envelopes.wrap(tag, text, provenance)
        return self._marks.on_result(body, event) if event.kind is EventKind.TOOL_RESULT else body

    def _item(
        self,
        event: Event,
        part: Part,
        role: str,
        text: str,
        authority: Authority,
        channel: Channel,
        call: Mapping[str, Any] | None = None,
    ) -> Item:
        fields = dict(event.data.get("message", {}))
        if role == "tool" and event.call_id is not None:
            fields["tool_call_id"] = event.call_id
        source = Source(
            uri=source_uri(event, call),
            version=f"e{event.seq}",
            trust=_TRUST[authority],
            read_at=iso_time(event.time_ns),
            payload_hash=event.payload_hash,
        )
        return Item(
            key=f"e{event.seq}",
            seq=event.seq,
            time_ns=event.time_ns,
            kind=event.kind,
            part=part,
            role=role,
            text=text,
            fields=fields,
            tokens=self._size(text, fields),
            authority=authority,
            channel=channel,
            source=source,
            call_id=event.call_id,
            anchor=bool(event.data.get("anchor", False)),
            conditions=tuple(map(str, event.data.get("conditions", ()))),
            raw_content=event.data.get("parts") if event.data.get("content") == "parts" else None,
        )
