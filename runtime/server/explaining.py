"""Explanations of one API call's requests, from before they are submitted to the answer that carries them."""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from fastapi import Request

from deeproot.runtime.explain.explainer import Explainer, Pending
from deeproot.runtime.explain.history import Chat, Tenant
from deeproot.runtime.explain.report import Explanation
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.server.cache_marks import session_of
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.later import LaterWork
from deeproot.runtime.server.metrics import Metrics
from deeproot.runtime.server.precedence import priority_of
from deeproot.runtime.server.responses import ChatCompletion, ChatCompletionChunk, OwnAnswer, TextCompletion
from deeproot.runtime.server.schemas import GenerationRequest
from deeproot.runtime.server.shared_prefixes import SharedPrefixes
from deeproot.runtime.server.state import Serving
from deeproot.runtime.server.tenants import tenant_of
from deeproot.scheduler.messages import AddRequest, Usage

HEADER = "x-deeproot-explain"
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no", "")


@dataclass(frozen=True, slots=True)
class Asker:
    """What a request says beside its prompt."""

    tenant: Tenant
    wants_explanation: bool
    since: str | None
    """The id of an earlier answer to compare with."""
    priority: int = 0
    session: bytes = b""
    """Empty: none is named."""
    traceparent: str | None = None
    """The header of that name."""

    def sign(self, request: AddRequest, shared: SharedPrefixes, seen: int = 0) -> AddRequest:
        """The request with what the engine has to know of who asks."""
        return msgspec.structs.replace(
            request,
            namespace=self.tenant.namespace,
            tenant=self.tenant.owner,
            priority=self.priority,
            shared=shared.num_shared(request.token_ids),
            seen=seen,
        )


def asker_of(request: Request, body: GenerationRequest) -> Asker:
    """Raises a 400 for a header that says neither yes nor no, or another session than the body."""
    said = request.headers.get(HEADER, "").strip().lower()
    if said not in _TRUE + _FALSE:
        raise invalid(f"The header X-Deeproot-Explain is {said!r}: set it to 1 or 0.", "X-Deeproot-Explain")
    own = body.deeproot
    since = own.since if own is not None else None
    wants = said in _TRUE or bool(own is not None and own.explain)
    return Asker(
        tenant_of(request, body.cache_salt),
        wants,
        since,
        priority_of(request, body.priority),
        session_of(request, body),
        request.headers.get("traceparent"),
    )


def explained(
    serving: Serving, asker: Asker, requests: Sequence[AddRequest], chat: Chat | None
) -> tuple["Explaining | None", tuple[AddRequest, ...]]:
    """What will explain the requests, None if that is switched off, and the requests with what the engine has to know for that."""
    if not serving.explainer.enabled:
        if asker.wants_explanation:
            raise invalid(
                "This server keeps nothing to explain with: start it with --explain-memory-bytes 32MiB.",
                "deeproot.explain",
            )
        return None, tuple(asker.sign(one, serving.shared) for one in requests)
    engine = serving.client.num_restarts
    pending = []
    for request in requests:
        ids = np.frombuffer(request.token_ids, dtype=np.int32)
        pending.append(serving.explainer.begin(request.rid, asker.tenant, ids, chat, engine, asker.since))
    told = [
        asker.sign(request, serving.shared, seen=known.common)
        for request, known in zip(requests, pending, strict=True)
    ]
    explaining = Explaining(serving.explainer, tuple(pending), asker.wants_explanation, serving.later)
    return explaining, tuple(told)


@dataclass(slots=True)
class Explaining:
    """The explanations of a job, one a request."""

    explainer: Explainer
    pending: tuple[Pending, ...]
    wanted: bool
    """Whether the answer carries them; they are kept and counted either way."""
    later: LaterWork
    explanations: tuple[Explanation, ...] = ()
    _usages: dict[int, Usage] = field(default_factory=dict)

    def submitted(self) -> None:
        for pending in self.pending:
            self.explainer.submitted(pending)

    def ended(self, index: int, text: OutputText) -> None:
        """Note a choice that has ended well."""
        assert text.end is not None
        self._usages[index] = text.end.usage
        self.explainer.computed(self.pending[index], text.end.usage, text.token_ids)

    async def finish(self, metrics: Metrics) -> None:
        """Explain all choices: before the answer ends if that carries it, else when there is time."""
        if self.wanted:
            await asyncio.to_thread(self._explain, metrics)
        else:
            self.later.put(functools.partial(self._explain, metrics))

    def _explain(self, metrics: Metrics) -> None:
        self.explanations = tuple(
            self.explainer.explain(self.pending[index], usage)
            for index, usage in sorted(self._usages.items())
        )
        for explanation in self.explanations:
            metrics.count_misses(explanation)


def with_own_answer(body: object, own: OwnAnswer) -> object:
    """The body of an answer, or a chunk, with what no other server says in it."""
    if isinstance(body, dict):
        return {**body, "deeproot": own}
    if not isinstance(body, ChatCompletion | ChatCompletionChunk | TextCompletion):
        return body
    anything: Any = own
    return msgspec.structs.replace(body, deeproot=anything)
