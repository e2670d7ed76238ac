"""Which searches for tools came before which replies.

A search is answered by the server, and clients see nothing of it. So when a conversation comes back, what was searched
for and found is put back where it was, and the prompt goes on with the very text it had.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.chat.reply_events import ParsedReply, ToolCall
from deeproot.runtime.chat.tool_search import NAME, Tool, ToolShelf, exchange, query_in

Message = Mapping[str, Any]
_MAX_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Searches:
    """The searches before one reply."""

    messages: tuple[Message, ...] = ()
    """Calls and results in turn."""
    names: frozenset[str] = frozenset()
    """Tools that were found."""
    content: str = ""
    """What the model said and thought with its calls: clients got it as the beginning of the reply."""
    reasoning: str = ""

    def followed_by(self, shelf: ToolShelf, reply: ParsedReply) -> "Searches":
        """With the searches of another reply, whose calls are nothing else."""
        found = {call.call_id: shelf.search(query_in(call.arguments)) for call in reply.calls}
        names = {tool["function"]["name"] for tools in found.values() for tool in tools}
        return Searches(
            (*self.messages, *exchange(reply, found)),
            self.names | names,
            self.content + reply.content,
            self.reasoning + reply.reasoning,
        )


class SearchMemory:
    """See the module. Bounded, and safe to lose; may be used by several threads."""

    def __init__(self, max_kept: int = _MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: OrderedDict[bytes, Searches] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, scope: bytes, messages: Sequence[Message], searches: Searches) -> None:
        """Remember what was searched for after `messages`. `scope`: see `scope_of`."""
        key = list(_digests(scope, messages))[-1]
        with self._lock:
            self._kept[key] = searches
            self._kept.move_to_end(key)
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)

    def arranged(self, scope: bytes, messages: Sequence[Message], shelf: ToolShelf) -> list[Message]:
        """The conversation with its searches in it.

        Where they are forgotten, the deferred tools that a reply calls are found by their names.
        """
        by_name = {tool["function"]["name"]: tool for tool in shelf.deferred}
        loaded: set[str] = set()
        result: list[Message] = []
        for key, message in zip(_digests(scope, messages), messages, strict=False):
            if message.get("role") == "assistant":
                searches = self._get(key)
                if searches is not None:
                    loaded |= searches.names
                    message = _without(message, searches)
                    result += searches.messages
                missing = [name for name in _called(message) if name in by_name and name not in loaded]
                if missing:
                    loaded.update(missing)
                    result += _by_name([by_name[name] for name in missing], key)
            result.append(message)
        return result

    def _get(self, key: bytes) -> Searches | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found


def scope_of(namespace: bytes, tools: Sequence[Tool]) -> bytes:
    """What has to be the same for a search to be remembered: who shares cached prefixes, and the tools."""
    return namespace + _packed(list(tools))


def _digests(scope: bytes, messages: Sequence[Message]) -> Iterable[bytes]:
    """Digests of no message, the first, the first two and so on."""
    seen = hashlib.blake2b(digest_size=16)
    seen.update(scope)
    yield seen.digest()
    for message in messages:
        seen.update(_packed(message))
        yield seen.digest()


def _packed(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def _called(message: Message) -> list[str]:
    calls = message.get("tool_calls")
    functions = [call.get("function") or {} for call in calls or () if isinstance(call, Mapping)]
    return list(dict.fromkeys(f["name"] for f in functions if isinstance(f.get("name"), str)))


def _by_name(tools: Sequence[Tool], key: bytes) -> list[dict[str, Any]]:
    query = " ".join(tool["function"]["name"] for tool in tools)
    call = ToolCall(key.hex()[:9], NAME, json.dumps({"query": query}, ensure_ascii=False))
    return exchange(ParsedReply("", (call,), False), {call.call_id: tools})


def _without(message: Message, searches: Searches) -> Message:
    """A reply as the client got it, less what was said with the searches before it."""
    content, reasoning = message.get("content"), message.get("reasoning_content")
    shorter = dict(message)
    if isinstance(content, str):
        shorter["content"] = content.removeprefix(searches.content)
    if isinstance(reasoning, str):
        shorter["reasoning_content"] = reasoning.removeprefix(searches.reasoning)
    return shorter
