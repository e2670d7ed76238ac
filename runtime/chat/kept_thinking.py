"""Shows replies of earlier turns with their thinking, where a chat template would drop it.

Templates of thinking models cut the thinking out of earlier replies, which changes text that is cached. Here the template
is given a placeholder for what such a reply says, and the reply's own words take its place afterwards.
"""

import re
from collections.abc import Callable, Sequence

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.messages import REASONING_NAMES, Message

_OPEN, _CLOSE = "<think>", "</think>"
_START, _END = "\ufdd4", "\ufdd5"  # no characters
_USER: Message = {"role": "user", "content": "a"}

Render = Callable[[Sequence[Message], bool], str]
"""The template on messages, with the opening of the next reply or without."""


def with_thinking(messages: Sequence[Message], render: Render) -> str:
    """The prompt, with the opening of the next reply, in which every reply says what it says in `messages`.

    Reasoning that comes apart stands before the content again. Replies that have neither, or whose content is no text,
    are left to the template.
    """
    shown, words = list(messages), dict[str, str]()
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or not isinstance(message["content"], str):
            continue
        whole = with_reasoning_in_content(message)
        if whole["content"]:
            name = f"{_START}{i}{_END}"
            shown[i], words[name] = {**whole, "content": name}, whole["content"]
    text = render(shown, True)
    if any(text.count(name) != 1 for name in words):
        return render(messages, True)
    section = _section_of_opening(render) if words else ""

    def said(found: re.Match[str]) -> str:
        content = words.get(found[0], found[0])
        return section + content if found[0] in words and not content.startswith(_OPEN) else content

    return re.sub(f"{_START}\\d+{_END}", said, text)


def with_reasoning_in_content(message: Message) -> Message:
    """A reply with the reasoning that came apart written before its content, as thinking models write it."""
    thoughts, content = message.get("reasoning_content"), message["content"]
    if not thoughts or not isinstance(content, str):
        return message
    rest = {key: value for key, value in message.items() if key not in REASONING_NAMES}
    gap = "\n\n" if content else ""
    return {**rest, "content": f"{_OPEN}\n{thoughts.strip()}\n{_CLOSE}{gap}{content}"}


def _section_of_opening(render: Render) -> str:
    """What the opening of a reply holds that the same reply lacks in an earlier turn: an empty think section."""
    name = f"{_START}{_END}"
    try:
        opened, asked = render([_USER], True), render([_USER], False)
        earlier = render([_USER, {"role": "assistant", "content": name}, _USER], False).partition(name)[0]
    except TemplateError:
        return ""
    is_longer = opened.startswith(asked) and opened.startswith(earlier)
    return opened[len(earlier) :] if is_longer else ""
