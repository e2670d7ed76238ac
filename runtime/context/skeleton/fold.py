"""Source code with its bodies folded: signatures, types and docstrings stay, and the result parses again."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deeproot.runtime.context.skeleton.languages import LanguageSpec, parser_of, spec_of

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Fold:
    """One body that was folded."""

    symbol: str
    """Qualified name of its routine, parts joined by dots; "" for one without a name."""
    first: int
    last: int
    """Lines of the source (from 1, both included) that the body covers."""
    start: int
    end: int
    """Bytes of the source that the marker stands for."""
    marker: str


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A folded source."""

    text: str
    folds: tuple[Fold, ...]
    missing: tuple[str, ...]
    """Names of `keep` that no routine or type of the source has."""
    source_parses: bool
    """Whether the grammar read the source without an error; if it did, it reads `text` without one too."""


@dataclass(slots=True)
class _Routine:
    symbol: str
    body: "Node"
    fold: Fold | None


def skeleton(source: str, language: str, *, keep: Collection[str] = (), docstrings: bool = False) -> Skeleton:
    """Fold each routine's body to a marker with the number of its lines.

    `keep`: symbols left whole, by name (`acquire`) or qualified (`Pool.acquire`); a class keeps all that is in it.
    `docstrings`: keep the docstrings of Python functions as well. A body stays where its marker would be no shorter,
    where the grammar finds an error in it, or where the folded source would not parse any more.

    Raises ValueError for a language that is not known and SkeletonUnavailableError where its grammar is missing.
    """
    spec = spec_of(language)
    data = source.encode("utf-8", "replace")
    root = parser_of(language).parse(data).root_node
    seen: set[str] = set()
    folds = list(_folds(root, spec, data, frozenset(keep), docstrings, seen))
    parses = not root.has_error
    if parses:
        folds = _that_parse(data, folds, language)
    missing = tuple(k for k in keep if not any(_named(s, k) for s in seen))
    return Skeleton(_apply(data, folds).decode("utf-8", "replace"), tuple(folds), missing, parses)


def _apply(data: bytes, folds: Sequence[Fold]) -> bytes:
    parts, at = [], 0
    for fold in folds:
        parts += [data[at : fold.start], fold.marker.encode()]
        at = fold.end
    return b"".join([*parts, data[at:]])


def _that_parse(data: bytes, folds: list[Fold], language: str) -> list[Fold]:
    """The folds after which the source still parses: all, as a rule; else halves are tried until one fold is at fault."""
    parser = parser_of(language)

    def fine(chosen: list[Fold]) -> bool:
        return not parser.parse(_apply(data, chosen)).root_node.has_error

    if fine(folds):
        return folds
    good: list[Fold] = []
    work = [folds[len(folds) // 2 :], folds[: len(folds) // 2]]
    while work:
        part = work.pop()
        if fine(sorted([*good, *part], key=lambda f: f.start)):
            good += part
        elif len(part) > 1:
            work += [part[len(part) // 2 :], part[: len(part) // 2]]
    return sorted(good, key=lambda f: f.start)


def _folds(
    root: "Node", spec: LanguageSpec, data: bytes, keep: frozenset[str], docstrings: bool, seen: set[str]
) -> Iterator[Fold]:
    """Outermost bodies first; a body is opened instead of folded where something in it is to be kept."""
    stack: list[tuple[Node, str]] = [(root, "")]
    found: list[Fold] = []
    while stack:
        node, scope = stack.pop()
        inner = scope
        if node.type in spec.scopes:
            inner = _join(scope, _name(node))
            seen.add(inner)
        elif node.type in spec.routines and (body := _body(node, spec)) is not None:
            symbol = _join(scope, _routine_name(node, spec))
            seen.add(symbol)
            nested = set(_symbols_in(body, spec, symbol)) if keep or node.type in spec.anonymous else set()
            seen |= nested
            if _kept(symbol, keep):
                continue
            opened = any(_kept(n, keep) for n in nested) or (node.type in spec.anonymous and bool(nested))
            if not opened:
                fold = None if body.has_error else _fold(symbol, body, spec, data, docstrings)
                if fold is not None:
                    found.append(fold)
                continue
            inner = symbol
        if _kept(inner, keep):
            _remember(node, spec, inner, seen)
            continue
        stack += [(child, inner) for child in node.children]
    yield from sorted(found, key=lambda f: f.start)


def _remember(node: "Node", spec: LanguageSpec, scope: str, seen: set[str]) -> None:
    seen.update(_symbols_in(node, spec, scope))


def _body(node: "Node", spec: LanguageSpec) -> "Node | None":
    body = node.child_by_field_name("body")
    if body is None:
        body = next((c for c in node.children if c.type in spec.bodies), None)
    return body if body is not None and body.type in spec.bodies else None


def _symbols_in(node: "Node", spec: LanguageSpec, scope: str) -> Iterator[str]:
    """Qualified names of the named routines and types inside a node."""
    stack = [(child, scope) for child in node.children]
    while stack:
        current, outer = stack.pop()
        inner = outer
        if current.type in spec.scopes or (
            current.type in spec.routines and _body(current, spec) is not None
        ):
            name = _name(current) if current.type in spec.scopes else _routine_name(current, spec)
            if name:
                inner = _join(outer, name)
                yield inner
        stack += [(child, inner) for child in current.children]


def _fold(symbol: str, body: "Node", spec: LanguageSpec, data: bytes, docstrings: bool) -> Fold | None:
    start, end = body.start_byte, body.end_byte
    first, last = body.start_point[0] + 1, body.end_point[0] + 1
    if spec.name == "python":
        if docstrings and (after := _after_docstring(body)) is not None:
            if after is body.children[-1] or not after.next_sibling:
                return None
            rest = after.next_sibling
            start, first = rest.start_byte, rest.start_point[0] + 1
        lines = last - first + 1
    else:
        lines = last - first - 1
    marker = spec.marker.format(n=lines)
    if "\n" in marker:
        marker = marker.replace("\n", "\n" + _indent(data, start))
    if lines == 1:
        marker = marker.replace("1 lines", "1 line")
    if lines < 1 or len(marker.encode()) >= end - start:
        return None
    return Fold(symbol, first, last, start, end, marker)


def _after_docstring(body: "Node") -> "Node | None":
    first = body.named_children[0] if body.named_children else None
    is_string = (
        first is not None and first.type == "expression_statement" and first.children[0].type == "string"
    )
    return first if is_string else None


def _indent(data: bytes, at: int) -> str:
    line = data[data.rfind(b"\n", 0, at) + 1 : at]
    return re.match(rb"[ \t]*", line)[0].decode()  # type: ignore[index]


def _text(node: "Node | None") -> str:
    return "" if node is None or node.text is None else node.text.decode("utf-8", "replace")


def _name(node: "Node") -> str:
    """Name of a type or module; of a Rust impl the type that it is for."""
    name = node.child_by_field_name("name") or (
        node.child_by_field_name("type") if node.type == "impl_item" else None
    )
    return re.sub(r"<.*", "", _text(name), flags=re.S).replace("::", ".").strip()


def _routine_name(node: "Node", spec: LanguageSpec) -> str:
    name = node.child_by_field_name("name")
    if name is not None:
        receiver = node.child_by_field_name("receiver") if spec.name == "go" else None
        if receiver is not None and (
            of := re.search(r"\*?\s*([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?\s*\)$", _text(receiver))
        ):
            return f"{of[1]}.{_text(name)}"
        return _text(name)
    declarator = node.child_by_field_name("declarator")
    while declarator is not None:
        deeper = declarator.child_by_field_name("declarator")
        if deeper is None:
            deeper = next((c for c in declarator.named_children if c.type.endswith("_declarator")), None)
        if deeper is None:
            return re.sub(r"\s*\(.*", "", _text(declarator), flags=re.S).replace("::", ".").strip()
        declarator = deeper
    parent = node.parent
    if parent is not None and parent.type in (
        "variable_declarator",
        "public_field_definition",
        "field_definition",
    ):
        return _text(parent.child_by_field_name("name") or parent.child_by_field_name("property"))
    if parent is not None and parent.type == "assignment_expression":
        return _text(parent.child_by_field_name("left"))
    if parent is not None and parent.type == "pair":
        return _text(parent.child_by_field_name("key"))
    return ""


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope and name else scope or name


def _named(symbol: str, key: str) -> bool:
    return symbol == key or symbol.endswith("." + key)


def _kept(symbol: str, keep: frozenset[str]) -> bool:
    """A symbol is kept by its own name or by that of a scope around it."""
    if not keep or not symbol:
        return False
    parts = symbol.split(".")
    return any(_named(".".join(parts[:n]), key) for n in range(1, len(parts) + 1) for key in keep)
