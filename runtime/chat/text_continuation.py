"""Token-exact continuation for plain prompts: text that extends an earlier prompt and its output gets their ids.

See `continuation`. A plain prompt has no turns, so the joint may be anywhere: it is taken only where the tokenizer
itself cuts between the output and what follows, else a few tokens earlier.
"""

import hashlib
from collections import OrderedDict

import numpy as np

from deeproot.runtime.chat.continuation import Prompt
from deeproot.runtime.chat.reply_memory import Reply, ReplyMemory
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer

_HEAD = 16
_MAX_HEADS, _MAX_LENGTHS = 1024, 256
_STEPS_BACK = 4
_CONTEXT = 8
"""Tokens before a joint that are encoded together with what follows, to see where the tokenizer cuts."""


class TextContinuation:
    """See the module. One a tokenizer; may be used by several threads."""

    def __init__(self, tokenizer: Tokenizer, memory: ReplyMemory) -> None:
        self._tokenizer = tokenizer
        self._memory = memory
        self._lengths: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        """Lengths of remembered prompts by how they begin, newest first."""

    def prompt(self, text: str, namespace: bytes = b"") -> Prompt:
        """The ids of a plain prompt, with remembered outputs of the same namespace in it."""
        seen, hashed, done = hashlib.blake2b(b"text" + namespace, digest_size=16), 0, 0
        ids, saved, first_other = np.empty(0, np.int32), 0, None
        lengths = {*self._lengths.get(text[:_HEAD], ()), *self._lengths.get("", ())}
        for start in sorted(length for length in lengths if length <= len(text)):
            if start < hashed:
                continue
            seen.update(_bytes(text[hashed:start]))
            hashed = start
            for reply in self._memory.get(seen.digest()):
                if not text.startswith(reply.text, start):
                    continue
                before = self._joined(ids, text[done:start])
                after = None if before is None else self._cut(before, reply, text, start)
                if before is None or after is None:
                    continue
                if first_other is None and not reply.retokenises:
                    first_other = len(before)
                ids, done = after
                saved = 0 if first_other is None else len(ids) - first_other
                break
        seen.update(_bytes(text[hashed:]))
        whole = self._joined(ids, text[done:]) if done else None
        if whole is None:
            whole, saved = self._tokenizer.encode_prompt(text), 0
        return Prompt(whole, seen.digest(), text, saved)

    def remember(self, prompt: Prompt, token_ids: list[int]) -> None:
        """Note what the model wrote after `prompt`: its ids, with or without the token that ended them."""
        special = self._tokenizer.special_ids
        if token_ids and token_ids[-1] in special:
            token_ids = token_ids[:-1]
        if not token_ids or not special.isdisjoint(token_ids):
            return
        text = self._text_of(token_ids)
        plain = self._joined(prompt.token_ids, text)
        reply = Reply(
            text,
            np.array(token_ids, np.int32).tobytes(),
            plain is not None and plain[len(prompt.token_ids) :].tolist() == token_ids,
        )
        self._memory.put(prompt.key, reply)
        head = prompt.ending[:_HEAD] if len(prompt.ending) >= _HEAD else ""
        others = [length for length in self._lengths.get(head, ()) if length != len(prompt.ending)]
        self._lengths[head] = (len(prompt.ending), *others[: _MAX_LENGTHS - 1])
        self._lengths.move_to_end(head)
        while len(self._lengths) > _MAX_HEADS:
            self._lengths.popitem(last=False)

    def _cut(self, before: Int32Array, reply: Reply, text: str, start: int) -> tuple[Int32Array, int] | None:
        """Ids up to a joint in or at the end of the reply, and where the joint is in `text`; None if none holds."""
        own = np.frombuffer(reply.token_ids, dtype=np.int32)
        for size in range(len(own), max(0, len(own) - _STEPS_BACK), -1):
            written = self._text_of(own[:size].tolist())
            end = start + len(written)
            ids = np.concatenate([before, own[:size]])
            if text.startswith(written, start) and self._joined(ids, text[end : end + 64]) is not None:
                return ids, end
        return None

    def _joined(self, ids: Int32Array, text: str) -> Int32Array | None:
        """`ids` and those of `text` after them; None if the tokenizer would not cut there."""
        if not len(ids):
            return self._tokenizer.encode_prompt(text)
        if not text:
            return ids
        context = self._text_of(ids[-_CONTEXT:].tolist())
        head = self._tokenizer.encode(context, parse_special=True)
        both = self._tokenizer.encode(context + text, parse_special=True)
        if not np.array_equal(both[: len(head)], head):
            return None
        return np.concatenate([ids, both[len(head) :]])

    def _text_of(self, token_ids: list[int]) -> str:
        pieces = self._tokenizer.pieces
        return b"".join(pieces[i] for i in token_ids if 0 <= i < len(pieces)).decode("utf-8", "replace")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
