"""What becomes of a reply's tokens when it has ended: leases, asked for or inferred, told to the engine meanwhile.

All of it happens after the answer, so that no request waits for it: nobody takes the pages of a request that runs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.chat.boundaries import END, conversation, in_order, num_older, tokens_up_to
from deeproot.runtime.chat.reply_events import CallStart
from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.client import EngineClient, EngineUnavailable
from deeproot.runtime.explain.history import Chat, Tenant
from deeproot.runtime.server.cache_marks import Mark
from deeproot.runtime.server.shared_roots import num_root_messages
from deeproot.runtime.server.state import Serving
from deeproot.scheduler.messages import AddRequest, Boundary, Hints
from deeproot.scheduler.questions import HoldAnswer, HoldQuestion

logger = logging.getLogger(__name__)

ROOT_LEASE_S = 600.0
"""Of a root that several sessions have, from its last use."""


@dataclass(frozen=True, slots=True)
class Hinting:
    """The hints of one prompt."""

    hints: Hints
    plan: Callable[[Sequence[CallStart]], Sequence[Boundary]]
    """What to lease when a reply has ended, given its calls; slow, for another thread."""
    background: "set[asyncio.Task[None]]"

    def ended(self, rid: str, calls: Sequence[CallStart], client: EngineClient) -> None:
        """Tell the engine what to lease, without waiting for it."""
        task = asyncio.create_task(self._tell(rid, calls, client))
        self.background.add(task)  # nobody else holds it
        task.add_done_callback(self.background.discard)

    async def _tell(self, rid: str, calls: Sequence[CallStart], client: EngineClient) -> None:
        try:
            boundaries = await asyncio.to_thread(self.plan, calls)
            if any(boundary.lease_s > 0 for boundary in boundaries):
                await client.ask(HoldQuestion(rid, tuple(boundaries)), HoldAnswer)
        except EngineUnavailable:
            pass  # nothing is left to be kept
        except Exception:  # the reply is out already: no request may fail for a hint
            logger.exception("what to keep of %s could not be told", rid)


def chat_hinting(
    serving: Serving,
    tenant: Tenant,
    chat: Chat,
    ids: Int32Array,
    marks: Sequence[Mark],
    session: bytes,
    lease_s: float,
) -> Hinting:
    """Of a conversation as the template gets it. ids: its prompt. lease_s: for the whole of it, 0 if none is asked for."""
    _note_results(serving, tenant, chat)

    def plan(calls: Sequence[CallStart]) -> list[Boundary]:
        serving.pauses.called(tenant.owner, [(call.call_id, call.name) for call in calls], time.monotonic())
        found = [_of_mark(mark, _place(serving, chat, ids, mark)) for mark in marks]
        count = num_root_messages(chat.messages)
        if serving.roots.meet(tenant, chat, session):
            root = _boundary_tokens(serving, chat, ids, count)
            found.append(Boundary(root, EvictionClass.ROOT, ROOT_LEASE_S))
        pause = serving.pauses.expected(tenant.owner, [call.name for call in calls])
        if lease_s > 0 or pause > 0:
            # What is asked for stays also when the conversation goes on; what is expected is then over.
            seconds, ends = (lease_s, False) if lease_s >= pause else (pause, True)
            root, newest = (
                _boundary_tokens(serving, chat, ids, n) for n in (count, num_older(chat.messages))
            )
            found += conversation(root, newest, seconds, pause=ends)
        return in_order(found)

    return Hinting(Hints(tenant.owner, session), plan, serving.background)


def hinted(hinting: Hinting, requests: Sequence[AddRequest]) -> tuple[AddRequest, ...]:
    """The requests with what the engine has to know at their start."""
    return tuple(msgspec.structs.replace(request, hints=hinting.hints) for request in requests)


def text_hinting(
    serving: Serving, tenant: Tenant, marks: Sequence[Mark], session: bytes, lease_s: float
) -> Hinting:
    """Of a plain prompt: only what is asked for."""
    found = [_of_mark(mark, mark.token or 0) for mark in marks]
    if lease_s > 0:
        found.append(Boundary(END, EvictionClass.LEAF, lease_s))
    boundaries = in_order(found)
    return Hinting(Hints(tenant.owner, session), lambda _: boundaries, serving.background)


def _note_results(serving: Serving, tenant: Tenant, chat: Chat) -> None:
    newest: list[Any] = []
    for message in reversed(chat.messages):
        if message.get("role") != "tool":
            break
        newest.append(message.get("tool_call_id"))
    serving.pauses.returned(tenant.owner, [i for i in newest if isinstance(i, str)], time.monotonic())


def _place(serving: Serving, chat: Chat, ids: Int32Array, mark: Mark) -> int:
    return mark.token if mark.token is not None else _boundary_tokens(serving, chat, ids, mark.messages)


def _of_mark(mark: Mark, end: int) -> Boundary:
    return Boundary(end, mark.zone, mark.lease_s, mark.priority)


def _boundary_tokens(serving: Serving, chat: Chat, ids: Int32Array, count: int) -> int:
    """About how many tokens the tools and the first `count` messages take; 0 if the template does not show them alone."""
    template, continuation = serving.speech.require_template(), serving.continuations.chat
    assert continuation is not None, "there is a template"
    return tokens_up_to(template, continuation, chat.messages, chat.tools, chat.template_kwargs, ids, count)
