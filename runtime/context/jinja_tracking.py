"""A Jinja sandbox whose output still knows which characters are the template's and which a message's."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deeproot.runtime.chat.jinja_env import make_environment
from deeproot.runtime.context.tracked import LITERAL, Owner, Tracked, concat, owned, runs_of

_MARK, _PUSH, _POP = "mark", "push", "pop"


class TrackedDict(dict[str, Any]):
    """A message, or a part of one. `owner`: whose JSON it is; every string in it too, unless it is a whole message.

    `segments`: those of a whole message's content, in order; None for a part of a message.
    """

    owner: Owner
    segments: tuple[Hashable, ...] | None = None


class TrackedList(list[Any]):
    """A list whose JSON, every string included, belongs to `owner`."""

    owner: Owner


def track(value: Any, owner: Owner) -> Any:
    """A copy of a JSON-like value in which every string, keys included, belongs to `owner`."""
    if isinstance(value, str):
        return value if isinstance(value, Tracked) else owned(value, owner)
    if isinstance(value, Mapping):
        made = TrackedDict((owned(str(key), owner), track(item, owner)) for key, item in value.items())
        made.owner = owner
        return made
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        items = TrackedList(track(item, owner) for item in value)
        items.owner = owner
        return items
    return value


class _TrackingGenerator(CodeGenerator):
    """Generates code whose string constants are known to be the template's own."""

    environment: "TrackingEnvironment"

    def _literal(self, text: str) -> str:
        return f"environment.literals[{self.environment.intern(text)}]"

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(str(item) for item in group))

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(self._literal(value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(self._literal(node.data))

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            # One of our own marks: no template can write this node.
            self.write(f"context.tracker.{node.node.name}(")
            for argument in node.args:
                self.visit(argument, frame)
            self.write(")")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Tracker:
    """Which message the template is at, while it runs."""

    def __init__(self) -> None:
        self.current: TrackedDict | None = None
        self._stack: list[TrackedDict | None] = []

    def mark(self, item: Any) -> None:
        """A loop is at `item`."""
        if isinstance(item, TrackedDict) and item.segments is not None:
            self.current = item

    def push(self) -> None:
        """A loop begins."""
        self._stack.append(self.current)

    def pop(self) -> None:
        """A loop ends."""
        self.current = self._stack.pop()


class TrackingContext(Context):
    """A rendering's variables, and where it is."""

    tracker: Tracker


class TrackingEnvironment(ImmutableSandboxedEnvironment):
    """One environment per template: it holds the template's constants."""

    code_generator_class = _TrackingGenerator
    context_class = TrackingContext
    concat = staticmethod(concat)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.literals: list[Tracked] = []
        self._index: dict[str, int] = {}

    def intern(self, text: str) -> int:
        """The place in `literals` of one of the template's constants."""
        if text not in self._index:
            self._index[text] = len(self.literals)
            self.literals.append(owned(text, LITERAL))
        return self._index[text]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _mark_loops(tree)
        return tree


def make_tracking_environment(now: Callable[[], datetime]) -> TrackingEnvironment:
    """The environment in which every chat template runs, with filters that keep owners."""
    made = make_environment(now, TrackingEnvironment)
    made.filters.update(tojson=_to_json, join=_join, safe=made.filters["string"])
    made.globals["strftime_now"] = lambda form: owned(now().strftime(str(form)), LITERAL)
    return made


def _mark_loops(node: nodes.Node) -> None:
    """Make every loop say which item it is at, and restore what was said when it ends."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            marked: list[Any] = []
            for child in value:
                if isinstance(child, nodes.Node):
                    _mark_loops(child)
                if isinstance(child, nodes.For) and isinstance(child.target, nodes.Name):
                    target = nodes.Name(child.target.name, "load", lineno=child.lineno)
                    child.body.insert(0, _call(_MARK, [target], child.lineno))
                    marked += [_call(_PUSH, [], child.lineno), child, _call(_POP, [], child.lineno)]
                else:
                    marked.append(child)
            setattr(node, field, marked)
        elif isinstance(value, nodes.Node):
            _mark_loops(value)


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.ExprStmt:
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.ExprStmt(nodes.Call(function, arguments, [], None, None, lineno=line), lineno=line)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: Any = None
) -> Tracked:
    if attribute is not None:
        value = [environment.getattr(item, attribute) for item in value]
    pieces: list[Any] = []
    for i, item in enumerate(value):
        pieces += [d, item] if i and d else [item]
    return concat(pieces)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Tracked:
    """`json.dumps` with owners: a container's punctuation belongs to whom the container does."""
    between, colon = separators or ((", " if indent is None else ","), ": ")
    width = " " * indent if isinstance(indent, int) else indent
    pieces: list[str] = []
    _write_json(value, pieces, LITERAL, (ensure_ascii, width, between, colon, sort_keys), 0)
    return concat(pieces)


_Style = tuple[bool, str | None, str, str, bool]


def _write_json(value: Any, pieces: list[str], owner: Owner, style: _Style, depth: int) -> None:
    ascii_only, width, between, colon, sort_keys = style
    if isinstance(value, str):
        pieces += _json_string(value, ascii_only)
        return
    if isinstance(value, TrackedList) or (isinstance(value, TrackedDict) and value.segments is None):
        pieces.append(owned(_dump(value, style, depth), value.owner))
        return
    if not isinstance(value, (Mapping, list, tuple)):
        pieces.append(owned(json.dumps(value, ensure_ascii=ascii_only), owner))
        return
    owner = getattr(value, "owner", owner)
    opening, closing = ("{", "}") if isinstance(value, Mapping) else ("[", "]")
    if not value:
        pieces.append(owned(opening + closing, owner))
        return
    newline = "" if width is None else "\n" + width * (depth + 1)
    keys = list(value) if isinstance(value, Mapping) else range(len(value))
    if sort_keys and isinstance(value, Mapping):
        keys = sorted(keys)
    for i, key in enumerate(keys):
        pieces.append(owned((between if i else opening) + newline, owner))
        if isinstance(value, Mapping):
            pieces += _json_string(key if isinstance(key, str) else owned(json.dumps(key), owner), ascii_only)
            pieces.append(owned(colon, owner))
        _write_json(value[key], pieces, owner, style, depth + 1)
    end = "" if width is None else "\n" + width * depth
    pieces.append(owned(end + closing, owner))


def _json_string(value: str, ascii_only: bool) -> list[Tracked]:
    """JSON escapes character by character, so each run is spelled on its own."""
    runs = runs_of(value) or ((0, LITERAL),)
    pieces = [owned('"', runs[0][1])]
    at = 0
    for length, owner in runs:
        spelled = json.dumps(str.__getitem__(value, slice(at, at + length)), ensure_ascii=ascii_only)
        pieces.append(owned(spelled[1:-1], owner))
        at += length
    return [*pieces, owned('"', runs[-1][1])]


def _dump(value: Any, style: _Style, depth: int) -> str:
    """JSON of a value of one owner, as it stands `depth` levels deep in another."""
    ascii_only, width, between, colon, sort_keys = style
    spelled = json.dumps(
        value, ensure_ascii=ascii_only, indent=width, separators=(between, colon), sort_keys=sort_keys
    )
    # In JSON line feeds are never part of a string.
    return spelled if width is None or not depth else spelled.replace("\n", "\n" + width * depth)
