"""Token-exact continuation: a reply that a client sends back gets the very ids that the model wrote.

The ids that a model samples are not always those that its text encodes to, and one that differs makes everything after
it new to the cache. So each reply is remembered under a digest of all that the model saw before it. When a new prompt
has such a text before a place where a reply stands, and the reply is the same, its ids are taken and only the rest is
tokenised, from the control token that ends the reply on.

Texts are compared as `ControlGuard.spans` writes them: template and content are told apart, so that content which
spells a control token never meets one.
"""

import functools
import hashlib
import re
from dataclasses import dataclass

import numpy as np

from deeproot.runtime.chat.control_guard import ControlGuard, Rendering
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.chat.reply_match import same_reply
from deeproot.runtime.chat.reply_memory import Reply, ReplyMemory
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer

_MAX_OPENINGS, _MAX_OPENING_LENGTH = 32, 2000
_SEEN = 500
"""Characters before a reply that tell whether it begins with reasoning."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's ids, and what it takes to remember its reply."""

    token_ids: Int32Array
    """`[num_tokens]`"""
    key: bytes
    """Digest of what the model sees."""
    ending: str
    """The end of the prompt's text, from its last joint on."""
    tokens_saved: int = 0
    """Tokens behind the first place where encoding the text would have given other ids, up to the end of the last
    remembered reply."""


@dataclass(frozen=True, slots=True)
class Found:
    """A remembered reply in a new prompt's text."""

    start: int
    end: int
    reply: Reply
    as_written: bool
    """Whether it came back to the letter."""


class ChatContinuation:
    """See the module. One a chat template; may be used by several threads."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        memory: ReplyMemory,
        replies: ReplyFormat,
        pieces: PieceMemory,
    ) -> None:
        self._pieces = pieces
        self._guard: ControlGuard = template.guard
        self._tokenizer = tokenizer
        self._memory = memory
        aliases = {i: a for e in tokenizer.added if (a := self._guard.alias_of(i := e.token_id)) is not None}
        self._replies = replies
        # Marks that stand inside a reply do not end it, special tokens or not.
        self._special_ids = tokenizer.special_ids.difference(map(tokenizer.id_of, replies.marks))
        """Control tokens that no reply holds."""
        self._special = _any_of([a for i, a in aliases.items() if i in self._special_ids])
        self._inner = _any_of(
            [a for i, a in aliases.items() if i in tokenizer.special_ids - self._special_ids]
        )
        self._plain = {alias: tokenizer.text_of(i) for i, alias in aliases.items()}
        self._any_alias = _any_of(list(aliases.values()))
        self._openings: tuple[str, ...] = ()
        """How prompts have ended, from their last control token on, newest first: after these a reply may stand."""

    def prompt(self, rendering: Rendering, *, exact: bool = False, namespace: bytes = b"") -> Prompt:
        """The ids of a conversation, with remembered replies in it. `exact`: only replies that came back to the
        letter. `namespace`: replies of other namespaces are not known."""
        spans = self._guard.spans(rendering)
        seen = hashlib.blake2b(b"chat" + namespace, digest_size=16)
        found, hashed, done = [], 0, 0
        for start in self._starts(spans):
            if start < hashed:
                continue
            seen.update(_bytes(spans[hashed:start]))
            hashed = start
            match = self._reply_at(spans, start, self._memory.get(seen.digest()), exact)
            if match is not None:
                seen.update(_bytes(match.reply.text))
                found.append(match)
                hashed = done = match.end
        seen.update(_bytes(spans[hashed:]))
        ids, saved = self._joined(spans, found, namespace) if found else (None, 0)
        if ids is None:
            ids = self._guard.encode_rendering(rendering, self._pieces, namespace)
            saved, done = 0, 0
        return Prompt(ids, seen.digest(), spans[self._last_special(spans, done) :], saved)

    def length_of(self, start: Rendering, ids: Int32Array) -> int:
        """About how many of a prompt's `ids` a rendering of its start takes: up to the control token that comes next."""
        spans = self._guard.spans(start)
        controls = np.fromiter(self._special_ids, dtype=np.int32)
        count = len(self._special.findall(spans)) if len(controls) else 0
        if not count:
            return min(len(self._guard.encode_rendering(start)), len(ids))
        places = np.flatnonzero(np.isin(ids, controls))
        return int(places[count]) if count < len(places) else len(ids)

    def remember(self, prompt: Prompt, token_ids: list[int]) -> None:
        """Note what the model wrote after `prompt`: its ids, with or without the token that ended them."""
        if token_ids and token_ids[-1] in self._special_ids:
            token_ids = token_ids[:-1]
        # A control token in the middle is not in the text that the client gets, so it cannot come back.
        if not token_ids or not self._special_ids.isdisjoint(token_ids):
            return
        if len(prompt.ending) > _MAX_OPENING_LENGTH or not self._special.match(prompt.ending):
            return
        text = self._text_of(token_ids)
        ids = np.array(token_ids, dtype=np.int32)
        plain = self._guard.encode_spans(prompt.ending + text)
        own = np.concatenate([self._guard.encode_spans(prompt.ending), ids])
        self._memory.put(prompt.key, Reply(text, ids.tobytes(), np.array_equal(plain, own)))
        self._note_opening(prompt.ending)

    def _reply_at(self, spans: str, start: int, replies: tuple[Reply, ...], exact: bool) -> Found | None:
        ended = self._special.search(spans, start) if replies else None
        if ended is None:
            return None
        sent = spans[start : ended.start()]
        inner = self._inner.findall(sent)
        # What a client spells may look like a mark, but only the template's marks are tokens.
        fitting = [reply for reply in replies if self._inner.findall(reply.text) == inner]
        for reply in fitting:
            if self._flat(sent) == self._flat(reply.text):
                return Found(start, ended.start(), reply, as_written=True)
        read = functools.partial(self._replies.read, self._flat(spans[max(0, start - _SEEN) : start]))
        for reply in () if exact else fitting:
            if same_reply(self._flat(sent), self._flat(reply.text), read, self._replies.marks):
                return Found(start, ended.start(), reply, as_written=False)
        return None

    def _joined(self, spans: str, found: list[Found], namespace: bytes) -> tuple[Int32Array | None, int]:
        """Ids of `spans` with those of the replies in it, and how many were saved; None if a joint does not hold."""
        parts: list[Int32Array] = []
        size, first_other, done = 0, None, 0
        for item in found:
            before = self._guard.encode_spans(spans[done : item.start], self._pieces, namespace)
            if done and before[0] not in self._special_ids:
                return None, 0
            size += len(before)
            if first_other is None and not (item.as_written and item.reply.retokenises):
                first_other = size
            ids = np.frombuffer(item.reply.token_ids, dtype=np.int32)
            parts += [before, ids]
            size, done = size + len(ids), item.end
        rest = self._guard.encode_spans(spans[done:], self._pieces, namespace)
        if rest[0] not in self._special_ids:
            return None, 0
        return np.concatenate([*parts, rest]), 0 if first_other is None else size - first_other

    def _last_special(self, spans: str, start: int) -> int:
        """Where the last control token begins at or after `start`; the end if there is none."""
        last = len(spans)
        for found in self._special.finditer(spans, start):
            last = found.start()
        return last

    def _starts(self, spans: str) -> list[int]:
        """Where replies may stand, in order."""
        return sorted(
            {found.end() for text in self._openings for found in re.finditer(re.escape(text), spans)}
        )

    def _note_opening(self, opening: str) -> None:
        # One assignment, so that other threads see the old ones or the new ones.
        others = [text for text in self._openings if text != opening]
        self._openings = (opening, *others[: _MAX_OPENINGS - 1])

    def _text_of(self, token_ids: list[int]) -> str:
        pieces, size = self._tokenizer.pieces, len(self._tokenizer.pieces)
        data = b"".join(
            alias.encode() if (alias := self._guard.alias_of(i)) is not None else pieces[i]
            for i in token_ids
            if 0 <= i < size
        )
        if self._tokenizer.drop_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def _flat(self, spans: str) -> str:
        return self._any_alias.sub(lambda found: self._plain[found[0]], spans)


def _any_of(texts: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
