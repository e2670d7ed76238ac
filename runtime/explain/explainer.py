"""Says of every request why its prompt was or was not cached, from what was computed before it and what the engine did.

Before a request is submitted, `begin` finds the earlier sequence that shares most with it. When the engine has ended it,
`ended` notes what was computed, and `finish` explains. Texts are only looked at where a prompt leaves an earlier one.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from deeproot.engine.radix_node import TOKEN_BYTES, common_tokens
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer
from deeproot.runtime.explain.changes import Side, cause_of
from deeproot.runtime.explain.history import Chat, History, Past, Tenant
from deeproot.runtime.explain.prompt_map import Origin, PromptMap, Spot, TokenPlace, map_prompt, place_of
from deeproot.runtime.explain.report import Cause, Divergence, Explanation, Miss
from deeproot.scheduler.messages import TokenOutput, Usage

_SHARED_SHOWN, _SHOWN = 16, 48
"""Characters shown before and from the place where two prompts part."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request that has begun, and what was known then."""

    rid: str
    tenant: Tenant
    ids: bytes
    """int32: the prompt."""
    chat: Chat | None
    engine: int
    nearest: Past | None
    common: int
    """Tokens that the prompt shares with `nearest`."""
    since: Past | None = None
    """The request that the client asked to be compared with."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_prompt(self) -> int:
        return len(self.ids) // TOKEN_BYTES

    def past(self, ids: bytes) -> Past:
        """The record of this request, once `ids` are computed."""
        return Past(self.rid, self.tenant, ids, self.num_prompt, self.chat, self.engine)


class Explainer:
    """One a served model. Methods may be called from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, max_bytes: int, max_kept: int = 256
    ) -> None:
        """max_bytes: for the sequences to compare with; 0 switches everything off. max_kept: explanations."""
        self._tokenizer = tokenizer
        self._template = template
        self.enabled = max_bytes > 0
        self._history = History(max_bytes)
        self._max_kept = max_kept
        self._kept: OrderedDict[str, tuple[Tenant, Explanation]] = OrderedDict()
        self._lock = threading.Lock()
        self._running: dict[str, Pending] = {}

    def begin(
        self,
        rid: str,
        tenant: Tenant,
        ids: Int32Array,
        chat: Chat | None,
        engine: int,
        since: str | None = None,
    ) -> Pending:
        """Look what is known of a prompt. engine: which one since the start. since: id of a request to compare with,
        which only who sent it knows."""
        data = ids.tobytes()
        nearest, common = self._history.nearest(tenant.namespace, data, chat)
        named = None if since is None else self._history.get(since)
        if named is not None and named.tenant.owner != tenant.owner:
            named = None
        return Pending(rid, tenant, data, chat, engine, nearest, common, named)

    def submitted(self, pending: Pending) -> None:
        """The engine has been given the request: `ended` will come, unless the engine dies."""
        if any(other.engine != pending.engine for other in self._running.values()):
            self._running = {r: p for r, p in self._running.items() if p.engine == pending.engine}
        self._running[pending.rid] = pending

    def ended(self, last: TokenOutput) -> None:
        """Note the prompt of a request that the engine has ended, also if its client has left."""
        pending = self._running.pop(last.rid, None)
        if pending is not None and last.usage is not None:
            self.computed(pending, last.usage, ())

    def computed(self, pending: Pending, usage: Usage, output: Sequence[int]) -> None:
        """Remember what the engine has computed for a request that has ended."""
        done = pending.ids[: (usage.cached + usage.computed) * TOKEN_BYTES]
        if len(done) == len(pending.ids):
            # Nobody has needed K and V of the token that was sampled last.
            done += np.array(output[:-1], dtype=np.int32).tobytes()
        if done:
            self._history.put(pending.past(done))

    def explain(self, pending: Pending, usage: Usage) -> Explanation:
        """The explanation of a request that has ended; kept for `latest` and `get`. May take milliseconds."""
        explanation = self._explanation(pending, usage)
        with self._lock:
            self._kept[pending.rid] = (pending.tenant, explanation)
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return explanation

    def get(self, rid: str) -> tuple[Tenant, Explanation] | None:
        """A kept explanation and whose it is."""
        with self._lock:
            return self._kept.get(rid)

    def latest(self) -> list[tuple[Tenant, Explanation]]:
        """The kept explanations and whose they are, newest first."""
        with self._lock:
            return list(reversed(self._kept.values()))

    def _explanation(self, pending: Pending, usage: Usage) -> Explanation:
        n, matched = pending.num_prompt, usage.cached
        limit = n - 1  # the last token is always computed, so that there are logits
        ceiling = min(limit, max(pending.common, matched + usage.evicted))
        ceiling = max(ceiling, matched)
        misses = []
        lost = ceiling - matched
        if usage.evicted and lost:
            misses.append(Miss(Cause.EVICTED, min(usage.evicted, lost)))
            lost -= misses[-1].tokens
        if lost:
            restarted = pending.nearest is not None and pending.nearest.engine != pending.engine
            misses.append(Miss(Cause.ENGINE_RESTARTED if restarted else Cause.NOT_CACHED, lost))
        divergence, cause, changed = None, Cause.FIRST_SEEN, 0
        if ceiling < limit and pending.nearest is not None and pending.common >= matched:
            divergence, cause, changed = self._divergence(pending, pending.nearest)
        if ceiling < limit and self._is_salted(pending, ceiling):
            assert pending.since is not None
            cause, changed = Cause.SALT, common_tokens(pending.since.ids, pending.ids) - ceiling
        if cause is not Cause.FIRST_SEEN and changed:
            misses.append(Miss(cause, min(changed, limit - ceiling)))
        new = limit - matched - sum(miss.tokens for miss in misses)
        if new > 0:
            misses.append(Miss(Cause.FIRST_SEEN, new))
        if usage.recomputed:
            misses.append(Miss(Cause.PREEMPTED, usage.recomputed))
        return Explanation(
            id=pending.rid,
            created=pending.created,
            prompt_tokens=n,
            matched_tokens=matched,
            ceiling_tokens=ceiling,
            cause=misses[0].cause if misses else None,
            misses=tuple(misses),
            divergence=divergence,
        )

    def _is_salted(self, pending: Pending, ceiling: int) -> bool:
        since = pending.since
        if since is None or since.tenant.namespace == pending.tenant.namespace:
            return False
        return common_tokens(since.ids, pending.ids) > ceiling

    def _divergence(self, pending: Pending, old: Past) -> tuple[Divergence | None, Cause, int]:
        """Where and why a prompt leaves the earlier sequence, and how many tokens that had from there on."""
        at = pending.common
        old_ids, ids = [np.frombuffer(data, dtype=np.int32) for data in (old.ids, pending.ids)]
        if at >= len(old_ids):  # it goes on where the earlier one ended
            return None, Cause.FIRST_SEEN, 0
        old_place, place = place_of(self._tokenizer, old_ids, at), place_of(self._tokenizer, ids, at)
        spot = self._spot(pending.chat, place)
        old_side = self._old_side(old, old_ids, old_place, at)
        new_side = _side(pending.chat, place, spot.origin)
        reply = self._tokenizer.decode(old_ids[old.num_prompt :].tolist())
        cause = cause_of(old_side, new_side, reply)
        message = None if spot.origin is None or spot.origin.message is None else spot.origin.message
        divergence = Divergence(
            token=at,
            segment=spot.origin.name if spot.origin else ("template" if pending.chat else "prompt"),
            role=None if message is None or pending.chat is None else pending.chat.messages[message]["role"],
            literal=spot.literal,
            earlier=old.rid,
            before=self._around(old_ids, at),
            after=self._around(ids, at),
        )
        return divergence, cause, len(old_ids) - at

    def _spot(self, chat: Chat | None, place: TokenPlace) -> Spot:
        found = self._map(chat)
        if found is None:
            return Spot(None, literal=False)
        return found.at(place)

    def _map(self, chat: Chat | None) -> PromptMap | None:
        if chat is None or self._template is None:
            return None
        return map_prompt(self._template, self._tokenizer, chat)

    def _old_side(self, old: Past, ids: Int32Array, place: TokenPlace, at: int) -> Side:
        spot = self._spot(old.chat, place)
        # The reply's stretch begins with what the template opens it with, and holds no message.
        special = np.isin(
            ids[: old.num_prompt], np.array(sorted(self._tokenizer.special_ids), dtype=np.int32)
        )
        opening = int(np.flatnonzero(special)[-1]) + 1 if special.any() else old.num_prompt
        if old.chat is None:
            return _side(None, place, None)
        text = self._tokenizer.decode(ids[old.num_prompt :].tolist())
        messages = [*old.chat.messages, {"role": "assistant", "content": text}]
        in_prompt = at < opening or (at < old.num_prompt and spot.origin is not None)
        origin = spot.origin if in_prompt else Origin(len(messages) - 1, "content")
        return Side(place.text, place.offset, place.cut, origin, messages, old.chat.tools, is_chat=True)

    def _around(self, ids: Int32Array, at: int) -> str:
        shared = self._tokenizer.decode(ids[max(0, at - 32) : at].tolist(), skip_special_tokens=False)
        here = self._tokenizer.decode(ids[at : at + _SHOWN].tolist(), skip_special_tokens=False)
        return shared[-_SHARED_SHOWN:] + here[:_SHOWN]


def _side(chat: Chat | None, place: TokenPlace, origin: Origin | None) -> Side:
    messages, tools = (chat.messages, chat.tools) if chat is not None else ((), ())
    return Side(place.text, place.offset, place.cut, origin, messages, tools, is_chat=chat is not None)
