"""What a failing tool tells the model: not only that it failed, but with what, where, and what else there is to try."""

import json
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.context.status.reading import one_line
from deeproot.runtime.context.status.techniques import Techniques

_FRAMES = 6
_ARGUMENTS = 600
_SUGGESTIONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), words)
    for pattern, words in (
        (r"no such file|filenotfound|not found: .*/", "list the folder above to see what the path really is"),
        (r"is a directory|isadirectory", "give a file in it; list the folder first"),
        (
            r"permission denied|permissionerror|access denied",
            "work inside the workspace, or ask the user for the right",
        ),
        (r"command not found", "look whether it is installed under another name, or do it another way"),
        (
            r"no module named|modulenotfound|importerror",
            "check the interpreter and its packages before you import it",
        ),
        (r"time[d ]*out", "give it less to do at once, or more time, and look what it waits for"),
        (r"connection refused", "check host and port: the service may listen elsewhere, or not run"),
        (r"jsondecode|invalid json|expecting value", "write the arguments as one JSON object"),
        (r"keyerror|missing .*argument|required", "give every argument that the tool's schema requires"),
        (r"syntaxerror|indentationerror", "read the lines around the place before you edit them again"),
    )
)


def describe_failure(
    error: BaseException | str,
    *,
    arguments: Mapping[str, Any] | str,
    techniques: Techniques,
    suggestions: Sequence[str] = (),
) -> str:
    """The tool's result: type and message; where detailed errors are on, also arguments, stack and a suggestion.

    `error`: what was raised, or the words of a tool that failed. `suggestions`: the tool's own, instead of the usual.
    """
    kind = type(error).__name__ if isinstance(error, BaseException) else "error"
    message = str(error).strip() or "no message"
    first = f"{kind}: {message}"
    if not techniques.detailed_errors:
        return first
    spelled = (
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    )
    if len(spelled) > _ARGUMENTS:
        spelled = f"{spelled[:_ARGUMENTS]} [{len(spelled) - _ARGUMENTS} more characters]"
    lines = [first, f"arguments: {spelled}"]
    stack = _stack(error) if isinstance(error, BaseException) else ""
    if stack:
        lines.append(f"stack: {stack}")
    usual = [words for pattern, words in _SUGGESTIONS if pattern.search(first)][:1]
    lines += [f"suggestion: {one_line(words)}" for words in suggestions or usual]
    return "\n".join(lines)


def _stack(error: BaseException) -> str:
    """The innermost frames, outermost first: file, line, function."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " > ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames)
