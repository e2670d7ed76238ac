"""What each model call of a log saw: its working set, assembled again, and what it no longer holds of the one before."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deeproot.runtime.context.compaction.stand_in import is_stand_in
from deeproot.runtime.context.envelope import Defence
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.measure.words import facts_in
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.segments import Channel
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import AddedToken, TokenIds
from deeproot.runtime.context.working_set import Context, WorkingSet

PLAIN_TEMPLATE = (
    "{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}"
    "{%- for message in messages %}{{- message.role + '\\n' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{{- '\\n' + (call.function | tojson) }}{%- endfor %}{{- '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- 'assistant\\n' }}{%- endif %}"
)
"""For logs whose model's template is not at hand; every part of a message is in it."""
_CHUNK = 4


class RoughTokenizer:
    """Four characters a token, for where no tokenizer is at hand. Equal texts give equal ids."""

    @property
    def added(self) -> Sequence[AddedToken]:
        return ()

    def encode(self, text: str, *, parse_special: bool) -> TokenIds:
        chunks = (text[i : i + _CHUNK].encode("utf-8", "replace") for i in range(0, len(text), _CHUNK))
        return np.array([zlib.crc32(chunk) & 0x7FFFFFFF for chunk in chunks], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the prompt's messages."""

    tokens: int
    facts: frozenset[str]


@dataclass(frozen=True, slots=True)
class StagedCall:
    """The working set of the call that event `seq` answers."""

    seq: int
    turn: int
    time_ns: int
    token_ids: TokenIds
    raw_tokens: int
    """Of the whole log up to here, neither filtered nor enveloped."""
    lines: tuple[Line, ...]
    text: str
    compactions: int
    """How many calls up to this one no longer held what the call before them held."""


class Replayer:
    """Assembles the working sets of one log again.

    `policy`: what decided them (an `AppendOnly` for logs whose host sent everything). `tokenizer` is kept by whoever
    replays several logs of one model.
    """

    def __init__(
        self, policy: LayoutPolicy, tokenizer: SegmentTokenizer, template: ChatTemplate | None = None
    ) -> None:
        template = template or ChatTemplate(PLAIN_TEMPLATE)
        self.count: Callable[[str], int] = tokenizer.count
        self._staged = WorkingSet(policy=policy, tokenizer=tokenizer, template=template)
        self._raw = WorkingSet(
            policy=AppendOnly(),
            tokenizer=tokenizer,
            template=template,
            defence=Defence.NONE,
            filters=None,
            result_tokens=None,
        )
        self._lines: dict[str, tuple[Line, ...]] = {}

    def calls(self, log: EventLog) -> list[StagedCall]:
        """One for each message of the model. Raises `BudgetError` if a working set does not fit the policy's budget."""
        made: list[StagedCall] = []
        before: dict[str, tuple[str, ...]] = {}
        compactions = 0
        with EventLog.memory() as raw:  # the log as if nothing had ever been compacted
            for event in log.read():
                if event.kind is EventKind.ASSISTANT:
                    ctx = self._staged.assemble(log, upto=event.seq - 1)
                    now = _settled(ctx)
                    compactions += any(now.get(key) != notes for key, notes in before.items())
                    before = now
                    whole = int(self._raw.assemble(raw).token_ids.size)
                    made.append(self._call(event, len(made) + 1, ctx, whole, compactions))
                if not is_stand_in(event):
                    _copy(log, event, raw)
        return made

    def _call(self, event: Event, turn: int, ctx: Context, raw_tokens: int, compactions: int) -> StagedCall:
        contents = [str(message.get("content") or "") for message in ctx.messages]
        return StagedCall(
            seq=event.seq,
            turn=turn,
            time_ns=event.time_ns,
            token_ids=ctx.token_ids,
            raw_tokens=raw_tokens,
            lines=tuple(line for content in contents for line in self._lines_of(content)),
            text="\n".join(contents),
            compactions=compactions,
        )

    def _lines_of(self, content: str) -> tuple[Line, ...]:
        if content not in self._lines:
            parts = [part for part in content.split("\n") if part.strip()]
            self._lines[content] = tuple(Line(self.count(part), facts_in(part)) for part in parts)
        return self._lines[content]


def _copy(log: EventLog, event: Event, raw: EventLog) -> None:
    """Append an event to another log."""
    payload = log.payload(event)
    raw.extend([NewEvent(event.kind, payload, event.data, event.call_id, event.exit_code, event.time_ns)])


def _settled(ctx: Context) -> dict[str, tuple[str, ...]]:
    """What a later call must still hold, in the same words, if nothing was taken away: what events brought.

    Not the host's own items (status, reminder, …), which come and go, nor files, of which a newer version takes the
    place of an older one.
    """
    return {
        s.key: s.notes
        for s in ctx.report.segments
        if s.key[:1] == "e" and s.key[1:].isdigit() and s.channel is not Channel.ARTIFACT
    }
