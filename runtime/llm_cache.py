"""What `LLM` offers of its cache: hints of requests, probes and prices, sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deeproot.engine.eviction import MAX_PRIORITY, EvictionClass
from deeproot.runtime.cache_price import Probed, Tariff, cost_of
from deeproot.runtime.chat.boundaries import END, conversation, in_order, num_older, tokens_up_to
from deeproot.runtime.chat.continuation import ChatContinuation
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.context.cost_oracle import EditCost
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.llm_engine import LocalEngine
from deeproot.runtime.sampling_options import OptionError, check_prompt_length
from deeproot.runtime.server.shared_roots import num_root_messages
from deeproot.runtime.warm_pieces import WARM_LEASE_S, WarmPieces
from deeproot.scheduler.messages import Boundary, Hints
from deeproot.scheduler.questions import (
    ForkQuestion,
    HoldAnswer,
    HoldQuestion,
    LeaveQuestion,
    ProbeAnswer,
    ProbeQuestion,
    Question,
    SessionAnswer,
)

_ZONES = {"root": EvictionClass.ROOT, "trunk": EvictionClass.TRUNK, "leaf": EvictionClass.LEAF}


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run of a prompt, from the end of the one before, that is to be evicted after others for `lease_s` seconds from its last
    use. It ends behind so many `messages` (0: the tools alone), or at `token`.

    Raises OptionError, naming the field.
    """

    zone: Literal["root", "trunk", "leaf"]
    lease_s: float
    messages: int | None = None
    token: int | None = None
    priority: int = 0
    """The highest goes last: among roots, and among trunk and leaf, where it counts before the zone."""

    def __post_init__(self) -> None:
        if self.zone not in _ZONES:
            raise OptionError("zone", f"zone is {self.zone!r}: use one of {', '.join(_ZONES)}.")
        if not self.lease_s >= 0:
            raise OptionError("lease_s", f"lease_s must be 0 or more, got {self.lease_s}.")
        if (self.messages is None) == (self.token is None):
            raise OptionError(
                "messages", "Give either messages, how many the run holds, or token, where it ends."
            )
        if (self.messages or 0) < 0 or (self.token is not None and self.token < 1):
            raise OptionError("messages", "messages must be 0 or more, and token 1 or more.")
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise OptionError("priority", f"priority must be 0 to {MAX_PRIORITY}, got {self.priority}.")


@dataclass(frozen=True, slots=True)
class CacheHints:
    """What a call says of its tokens' future: the fields of `deeproot` in a request to the server. Raises OptionError."""

    session_id: str = ""
    """What the newest call of a session leaves of the others is evicted first."""
    lease_s: float = 0.0
    """Seconds for which the whole conversation, with the reply, is evicted after others."""
    boundaries: Sequence[KeptRun] = ()
    """In order."""
    priority: int = 0
    """Calls with lower ones start first and are preempted last."""

    def __post_init__(self) -> None:
        if not self.lease_s >= 0:
            raise OptionError("lease_s", f"lease_s must be 0 or more, got {self.lease_s}.")


def engine_hints(hints: CacheHints | None) -> Hints | None:
    """What the engine has to know at a call's start."""
    return None if hints is None else Hints(session=_name(hints.session_id))


def chat_boundaries(
    hints: CacheHints,
    template: ChatTemplate,
    continuation: ChatContinuation,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template_kwargs: Mapping[str, Any],
    ids: Int32Array,
) -> list[Boundary]:
    """What to lease of a conversation. ids: its prompt. Raises OptionError for a run behind the last message."""

    def place(count: int) -> int:
        return tokens_up_to(template, continuation, messages, tools, template_kwargs, ids, count)

    for i, run in enumerate(hints.boundaries):
        if (run.messages or 0) > len(messages):
            raise OptionError(
                "boundaries", f"boundaries[{i}].messages is {run.messages}, but there are {len(messages)}."
            )
    found = [_boundary(run, run.token or place(run.messages or 0)) for run in hints.boundaries]
    if hints.lease_s > 0:
        root, newest = place(num_root_messages(messages)), place(num_older(messages))
        found += conversation(root, newest, hints.lease_s, pause=False)
    return in_order(found)


def text_boundaries(hints: CacheHints) -> list[Boundary]:
    """What to lease of a plain prompt. Raises OptionError for a run that counts messages."""
    if any(run.token is None for run in hints.boundaries):
        raise OptionError("boundaries", "A plain prompt has no messages: give token, where the run ends.")
    found = [_boundary(run, run.token or 0) for run in hints.boundaries]
    if hints.lease_s > 0:
        found.append(Boundary(END, EvictionClass.LEAF, hints.lease_s))
    return in_order(found)


def _boundary(run: KeptRun, end: int) -> Boundary:
    return Boundary(end, _ZONES[run.zone], run.lease_s, run.priority)


class CacheCalls(LocalEngine):
    """The methods of `LLM` that are about its cache."""

    def probe(self, prompts: Sequence[str | Sequence[int] | TokenIds]) -> Probed:
        """How much of each prompt, a text or token ids, is cached. Uses nothing."""
        ids = [self._prompt(prompt).token_ids for prompt in prompts]
        answer = self._client.ask(ProbeQuestion(tuple(one.tobytes() for one in ids)), ProbeAnswer)
        return Probed(tuple(map(len, ids)), answer.cached, answer.tokens_per_second)

    def price(
        self,
        old: str | Sequence[int] | TokenIds,
        new: str | Sequence[int] | TokenIds,
        tariff: Tariff | None = None,
    ) -> tuple[EditCost, EditCost]:
        """What it would cost to send each of the two prompts now."""
        probed = self.probe([old, new])
        tariff = tariff or Tariff()
        return cost_of(probed, 0, tariff), cost_of(probed, 1, tariff)

    def warm(self, prompt: str | Sequence[int] | TokenIds, *, lease_s: float = WARM_LEASE_S) -> Probed:
        """Compute a prompt, a text or token ids, ahead, and keep it for `lease_s` seconds; then probe it.

        Waits until that is done, a piece at a time, each only when no other thread's call runs. Raises OptionError.
        """
        if not lease_s >= 0:
            raise OptionError("lease_s", f"lease_s must be 0 or more, got {lease_s}.")
        ids = self._prompt(prompt).token_ids
        check_prompt_length(len(ids), self._engine.speech.defaults.max_model_len, "prompt")
        pieces = WarmPieces(f"warm-{next(self._rids)}", ids)
        while (piece := pieces.next((probed := self.probe([ids])).cached_tokens[0])) is not None:
            with self._warm_turn:  # one piece of all threads' at a time
                self._client.wait_idle()
                for _ in self._client.run([piece]):
                    pass
        self._hold(pieces.newest_rid, [Boundary(len(ids), EvictionClass.LEAF, lease_s)])
        return probed

    def fork_session(self, session_id: str, new_id: str) -> int:
        """A second session that goes on from where one is, in the same pages; returns how many tokens it begins with.

        Raises KeyError for a session that is not known, ValueError if there is one of the new name.
        """
        told = self._told(session_id, ForkQuestion(b"", _name(session_id), _name(new_id)))
        if told.taken:
            raise ValueError(f"there is a session {new_id!r} already: give another new_id")
        return told.num_tokens

    def rewind_session(self, session_id: str, keep: int | str | Sequence[int] | TokenIds) -> int:
        """Keep the first tokens of a session, a number or the prompt that stays; what was behind is evicted first. Returns how
        many pages that concerns. Raises KeyError for a session that is not known, OptionError if nothing stays."""
        count = keep if isinstance(keep, int) else len(self._prompt(keep).token_ids)
        if count < 1:
            raise OptionError("keep", "keep is nothing: to give up all of a session, close it.")
        return self._told(session_id, LeaveQuestion(b"", _name(session_id), count)).scratch_pages

    def close_session(self, session_id: str) -> int:
        """End a session: its tokens are evicted first, unless somebody else needs them. Returns how many pages that concerns.
        Raises KeyError for a session that is not known."""
        return self._told(session_id, LeaveQuestion(b"", _name(session_id), 0)).scratch_pages

    def _hold(self, rid: str, boundaries: Sequence[Boundary]) -> None:
        """Lease runs of a request that has ended."""
        if any(boundary.lease_s > 0 for boundary in boundaries):
            self._client.ask(HoldQuestion(rid, tuple(boundaries)), HoldAnswer)

    def _told(self, session_id: str, question: Question) -> SessionAnswer:
        told = self._client.ask(question, SessionAnswer)
        if not told.known:
            raise KeyError(f"there is no session {session_id!r}: it begins when its first call has ended")
        return told


def _name(session_id: str) -> bytes:
    return session_id.encode("utf-8", "surrogatepass")
