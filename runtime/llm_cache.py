"""What `LLM` can say about its cache: which parts of a prompt to keep, and what becomes of sessions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from deeproot.engine.eviction import MAX_PRIORITY, EvictionClass
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.sync_client import SyncClient
from deeproot.scheduler.messages import AddRequest, Boundary, Hints
from deeproot.scheduler.questions import ForkQuestion, HoldAnswer, HoldQuestion, LeaveQuestion, SessionAnswer

Zone: TypeAlias = Literal["root", "trunk", "leaf"]
_ZONES = {"root": EvictionClass.ROOT, "trunk": EvictionClass.TRUNK, "leaf": EvictionClass.LEAF}
_END = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of a prompt, from the end of the part before it, and for how long it is evicted after others."""

    tokens: int
    """Where it ends, counted from the prompt's start; `LLM.chat_tokens` tells how many the first messages take."""
    zone: Zone
    lease_s: float
    """From its last use."""
    priority: int = 0
    """0 to 15, among parts of the same zone; the highest goes last."""


@dataclass(frozen=True, slots=True)
class CacheHints:
    """What a request says beside its prompt, as `deeproot` does in a request over HTTP."""

    session_id: str = ""
    """Requests of one session follow each other: what the newest leaves of the others is evicted first."""
    lease_s: float = 0.0
    """Seconds for which the whole sequence, with the reply, is evicted after others."""
    parts: Sequence[Kept] = ()
    """In any order."""
    priority: int = 0
    """Of the request: lower ones start first."""

    def check(self) -> None:
        """Raises OptionError, naming the field."""
        if not _is_duration(self.lease_s):
            raise _wrong("hints.lease_s", "seconds of 0 or more", self.lease_s)
        for i, part in enumerate(self.parts):
            where = f"hints.parts[{i}]"
            if part.tokens < 1:
                raise _wrong(f"{where}.tokens", "at least 1", part.tokens)
            if part.zone not in _ZONES:
                raise _wrong(f"{where}.zone", "root, trunk or leaf", part.zone)
            if not _is_duration(part.lease_s):
                raise _wrong(f"{where}.lease_s", "seconds of 0 or more", part.lease_s)
            if not 0 <= part.priority <= MAX_PRIORITY:
                raise _wrong(f"{where}.priority", f"0 to {MAX_PRIORITY}", part.priority)

    def of_request(self, request: AddRequest) -> AddRequest:
        """The request with what the engine has to know at its start."""
        hints = Hints(session=_name(self.session_id))
        return msgspec.structs.replace(request, priority=self.priority, hints=hints)

    def hold(self, client: SyncClient, rid: str) -> None:
        """Lease what is to be kept of a hinted request that has ended."""
        best: dict[int, Boundary] = {}
        whole = (Kept(_END, "leaf", self.lease_s),) if self.lease_s else ()
        for part in sorted((*self.parts, *whole), key=lambda part: part.lease_s):
            best[part.tokens] = Boundary(part.tokens, _ZONES[part.zone], part.lease_s, part.priority)
        if any(boundary.lease_s > 0 for boundary in best.values()):
            in_order = tuple(best[end] for end in sorted(best))
            client.ask(HoldQuestion(rid, in_order), HoldAnswer)


class SessionError(ValueError):
    """There is no such session, or there is one already."""


class Sessions:
    """The conversations that requests have named by `CacheHints.session_id`."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client

    def fork(self, session_id: str, new_id: str) -> int:
        """A second session that goes on from where one is, in the same pages; the tokens that both have.

        Raises SessionError.
        """
        told = self._ask(session_id, ForkQuestion(b"", _name(session_id), _name(new_id)))
        if told.taken:
            raise SessionError(f"there is a session {new_id!r} already: give another new_id")
        return told.num_tokens

    def rewind(self, session_id: str, keep_tokens: int) -> int:
        """Go back to a session's first tokens; how many pages are evicted before all others from now on.

        Raises SessionError; ValueError if nothing would stay, which is what `close` does.
        """
        if keep_tokens < 1:
            raise ValueError(f"keep_tokens must be at least 1, got {keep_tokens}: to keep nothing, close it")
        return self._ask(session_id, LeaveQuestion(b"", _name(session_id), keep_tokens)).scratch_pages

    def close(self, session_id: str) -> int:
        """End a session; how many of its pages are evicted before all others from now on. Raises SessionError."""
        return self._ask(session_id, LeaveQuestion(b"", _name(session_id), 0)).scratch_pages

    def _ask(self, session_id: str, question: ForkQuestion | LeaveQuestion) -> SessionAnswer:
        told = self._client.ask(question, SessionAnswer)
        if not told.known:
            raise SessionError(
                f"there is no session {session_id!r}: one begins when the first request that names it has ended"
            )
        return told


def _wrong(field: str, wanted: str, given: object) -> OptionError:
    return OptionError(field, f"{field} must be {wanted}, got {given!r}")


def _name(session_id: str) -> bytes:
    return session_id.encode("utf-8", "surrogatepass")


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
