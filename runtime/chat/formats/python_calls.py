"""Calls written as Python: `name(key=literal, …)`."""

import ast
import json
import math
import re
from collections.abc import Mapping

from deeproot.runtime.chat.formats.json_calls import checked_call
from deeproot.runtime.chat.formats.tool_format import CallForm, Plain, Slot, ToolFormat, ToolSchemas
from deeproot.runtime.chat.text_source import NoCall, RawCall, Steps, TextSource

_NAME = re.compile(r"[\w.\-]+")
_START, _END = "<|python_start|>", "<|python_end|>"
_QUOTES = "\"'"
_OPEN, _CLOSE = "([{", ")]}"
_MAX_DEPTH = 64
_TOO_LARGE = "1e309"
"""What a number becomes that no double holds: one that none holds either, which is still JSON."""
_WORDS = frozenset(["true", "false", "null"])
"""JSON's words, which models write in Python too."""


def python_call(source: TextSource) -> Steps[RawCall]:
    """One call. NoCall if its arguments are not keywords with literals."""
    name = yield from source.word(_NAME)
    yield from source.expect("(")
    text = yield from _arguments_text(source)
    return checked_call(name, _arguments_json(text))


def _arguments_text(source: TextSource) -> Steps[str]:
    """Take all up to the bracket that closes the one before; returns what is inside."""
    parts: list[str] = []
    depth = 1
    while depth:
        text, sign = yield from source.until(*_QUOTES, *_OPEN, *_CLOSE)
        parts += (text, sign)
        if sign in _QUOTES:
            parts.append((yield from _string_text(source, sign)))
        else:
            depth += 1 if sign in _OPEN else -1
        if depth > _MAX_DEPTH:
            raise NoCall
    return "".join(parts[:-1])


def _string_text(source: TextSource, quote: str) -> Steps[str]:
    """Take the rest of a string, its closing quote included."""
    parts: list[str] = []
    while True:
        text, sign = yield from source.until("\\", quote, "\n")
        if sign == "\n":
            raise NoCall
        parts += (text, sign)
        if sign == quote:
            return "".join(parts)
        parts.append((yield from source.one()))


def _arguments_json(text: str) -> str:
    try:
        tree = ast.parse(f"f({text}\n)", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Name):
            raise NoCall
        if any(keyword.arg is None for keyword in tree.keywords):
            raise NoCall
        values = {str(keyword.arg): _value_json(keyword.value) for keyword in tree.keywords}
        written = _object_json(values)
        written.encode()  # half of a surrogate pair cannot be sent
        return written
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NoCall from None


def _value_json(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=float() as number) if math.isinf(number):
            return _TOO_LARGE
        case ast.Constant(value=str() | int() | float() | None as value):
            return json.dumps(value, ensure_ascii=False)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return f"[{', '.join(map(_value_json, items))}]"
        case ast.Dict(keys=keys, values=values):
            names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
            texts = [name for name in names if isinstance(name, str)]
            if len(texts) < len(names):
                raise NoCall
            return _object_json(dict(zip(texts, map(_value_json, values), strict=True)))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value) as number):
            if type(value) in (int, float):
                return f"-{_value_json(number)}"
        case ast.Name(id=word) if word in _WORDS:
            return word
    raise NoCall


def _object_json(members: Mapping[str, str]) -> str:
    written = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items())
    return "{" + ", ".join(written) + "}"


def _read(source: TextSource, mark: str, schemas: ToolSchemas) -> Steps[None]:
    """A list of calls. Without a mark it has to be of known tools, or it is an answer that starts with a bracket."""
    yield from source.expect("[")
    calls: list[RawCall] = []
    while True:
        calls.append((yield from python_call(source)))
        if not mark and schemas and calls[-1].name not in schemas:
            raise NoCall
        if (yield from source.expect(",", "]")) == "]":
            break
    yield from calls
    if mark:
        yield from source.accept(_END, or_end=True)


PYTHONIC = ToolFormat(
    "pythonic",
    (_START,),
    _read,
    CallForm(
        (Slot.NAME, "(", Slot.ARGUMENTS, ")"), begin="[", separator=", ", end="]", arguments=Plain.PYTHON
    ),
    other_marks=(_END,),
    start_letters="[",
)
"""Llama 3.2 and 4."""
