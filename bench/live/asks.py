"""What a replay sends: sessions of chats or of token ids, with their times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deeproot.bench.cachesim.call import Call
from deeproot.runtime.context.openai_messages import content_text

LOW_ID, HIGH_ID = 1_000, 31_000
"""Token ids between which no usual vocabulary has special tokens."""
_CHARS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `messages` for a chat, or `prompt` as token ids; `time_s`: when it was made, from any origin.

    `max_tokens`: the most that may be answered.
    """

    session: str
    turn: int
    time_s: float
    max_tokens: int
    messages: tuple[Mapping[str, str], ...] = ()
    prompt: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Answer with all of `max_tokens`, whatever the model says; known to vLLM, SGLang, llama.cpp and deeproot."""

    def body(self, model: str) -> dict[str, Any]:
        """The request, streamed, with usage at its end."""
        said = {"messages": list(self.messages)} if self.messages else {"prompt": list(self.prompt)}
        return {
            "model": model,
            **said,
            **({"ignore_eos": True} if self.ignore_eos else {}),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def salted(self, salt: str) -> "Ask":
        """The same behind a first line, or first tokens, of its own: nothing of it is cached from an earlier round.

        Asks of one salt share among themselves what they shared before. salt: hexadecimal, 8 digits.
        """
        if not self.messages:
            ids = tuple(LOW_ID + int(salt[i : i + 2], 16) for i in range(0, 8, 2))
            return replace(self, prompt=ids + self.prompt)
        first, *others = self.messages
        marked = {**first, "content": f"[{salt}]\n{first['content']}"}
        return replace(self, messages=(marked, *others))


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Messages as any server's template takes them: calls and results spelled out as text, neighbours of one role joined."""
    made: list[dict[str, str]] = []
    for i, message in enumerate(messages):
        role, text = _plain(message, f"messages[{i}]")
        if made and made[-1]["role"] == role:
            made[-1]["content"] += f"\n\n{text}"
        else:
            made.append({"role": role, "content": text})
    return made


def _plain(message: Mapping[str, Any], where: str) -> tuple[str, str]:
    text, _ = content_text(message.get("content"), where)
    role = str(message.get("role"))
    if role in ("tool", "function"):
        return "user", f"Result of {message.get('name') or 'the tool'}:\n{text}"
    calls = [call.get("function", {}) for call in message.get("tool_calls") or []]
    spelled = [f"Call {call.get('name')}: {call.get('arguments')}" for call in calls]
    return ("system" if role == "developer" else role), "\n".join(
        [text, *spelled] if text else spelled or [""]
    )


def asks_of_conversation(
    messages: Sequence[Mapping[str, Any]], session: str, *, start_s: float, gap_s: float, max_tokens: int
) -> list[Ask]:
    """One for each of the model's messages that answers something; what it answered is sent as it was recorded."""
    made: list[Ask] = []
    for i, message in enumerate(messages):
        if message.get("role") != "assistant" or i == 0 or messages[i - 1].get("role") == "assistant":
            continue
        answer = _plain(message, f"messages[{i}]")[1]
        most = max(1, min(max_tokens, len(answer) // _CHARS_A_TOKEN))
        sent = tuple(plain_messages(messages[:i]))
        made.append(Ask(session, len(made) + 1, start_s + len(made) * gap_s, most, messages=sent))
    return made


def asks_of_calls(calls: Sequence[Call], *, max_tokens: int, max_prompt: int) -> list[Ask]:
    """Calls of token ids as asks; ids are mapped into `LOW_ID` to `HIGH_ID` in the order in which they first come.

    As long as there are no more different ids than that, two prompts share exactly what they shared. Prompts are cut off
    at `max_prompt` tokens.
    """
    known: dict[int, int] = {}
    turns: dict[str, int] = {}
    made = []
    for call in calls:
        found, inverse = np.unique(call.prompt[:max_prompt], return_inverse=True)
        mapped = [known.setdefault(int(i), LOW_ID + len(known) % (HIGH_ID - LOW_ID)) for i in found]
        turns[call.session] = turns.get(call.session, 0) + 1
        made.append(
            Ask(
                call.session,
                turns[call.session],
                call.time_s,
                max(1, min(max_tokens, int(call.answer.size))),
                prompt=tuple(np.array(mapped)[inverse].tolist()),
            )
        )
    return made
