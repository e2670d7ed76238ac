"""Source code with its bodies folded: signatures, types and docstrings stay, and the result parses again."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deeproot.runtime.context.skeleton.languages import LanguageSpec, language_of, parser_of, spec_of

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

    def source_line(self, line: int) -> int:
        """The line of the source (both from 1) in which line `line` of `text` begins."""
        for fold in self.folds:
            shown = fold.marker.count("\n")
            if line <= fold.first:
                return line
            if line <= fold.first + shown:
                return fold.first
            line += fold.last - fold.first - shown
        return line


def skeleton(source: str, language: str, *, keep: Collection[str] = (), docstrings: bool = False) -> Skeleton:
    """Fold each routine's body to a marker with the number of its lines.

    `keep`: symbols left whole, by name (`acquire`) or qualified (`Pool.acquire`); a class keeps all that is in it.
    `docstrings`: keep the docstrings of Python functions as well. A body stays where its marker would be no shorter,
    where the grammar finds an error in it, or where the folded source would not parse any more or declare less.

    Raises ValueError for a language that is not known and SkeletonUnavailableError where its grammar is missing.
    """
    spec = spec_of(language)
    data = source.encode("utf-8", "replace")
    root = parser_of(language).parse(data).root_node
    options = _Options(spec, frozenset(keep), docstrings)
    outline = _outline(root, data, options)
    folds = outline.folds if root.has_error else _that_parse(data, outline, options)
    missing = tuple(k for k in keep if not any(_named(s, k) for s in outline.seen))
    text = _apply(data, folds).decode("utf-8", "replace")
    return Skeleton(text, tuple(folds), missing, not root.has_error)


def skeleton_of_file(
    path: str, source: str, *, keep: Collection[str] = (), docstrings: bool = False
) -> Skeleton | None:
    """The skeleton of a file by its name or `#!` line; None where its language is none of the nine.

    A `.h` file that does not parse as C is taken for C++ where that grammar reads it.
    """
    language = language_of(path, source.split("\n", 1)[0])
    if language is None:
        return None
    result = skeleton(source, language, keep=keep, docstrings=docstrings)
    if language == "c" and path.endswith(".h") and not result.source_parses:
        other = skeleton(source, "cpp", keep=keep, docstrings=docstrings)
        return other if other.source_parses else result
    return result


def _apply(data: bytes, folds: Sequence[Fold]) -> bytes:
    parts, at = [], 0
    for fold in folds:
        parts += [data[at : fold.start], fold.marker.encode()]
        at = fold.end
    return b"".join([*parts, data[at:]])


def _that_parse(data: bytes, outline: "_Outline", options: "_Options") -> list[Fold]:
    """The folds after which the source still parses and declares what it declared.

    All of them, as a rule; else halves are tried until single folds are found to be at fault.
    """
    parser = parser_of(options.spec.name)

    def fine(chosen: list[Fold]) -> bool:
        folded = _apply(data, chosen)
        root = parser.parse(folded).root_node
        return not root.has_error and _outline(root, folded, options).declared == outline.declared

    if fine(outline.folds):
        return outline.folds
    good: list[Fold] = []
    work = [outline.folds[len(outline.folds) // 2 :], outline.folds[: len(outline.folds) // 2]]
    while work:
        part = work.pop()
        if fine(sorted([*good, *part], key=lambda f: f.start)):
            good += part
        elif len(part) > 1:
            work += [part[len(part) // 2 :], part[: len(part) // 2]]
    return sorted(good, key=lambda f: f.start)


@dataclass(frozen=True, slots=True)
class _Options:
    spec: LanguageSpec
    keep: frozenset[str]
    docstrings: bool


@dataclass(slots=True)
class _Outline:
    folds: list[Fold] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    """Symbols outside of bodies, in the order of the source."""
    seen: set[str] = field(default_factory=set)
    """Those, and symbols in bodies that were looked into."""


def _outline(root: "Node", data: bytes, options: _Options) -> _Outline:
    """Outermost bodies first; a body is opened instead of folded where something in it is to be kept."""
    spec, keep = options.spec, options.keep
    out = _Outline()
    stack: list[tuple[Node, str]] = [(root, "")]
    while stack:
        node, scope = stack.pop()
        inner = scope
        if node.type in spec.scopes:
            inner = _join(scope, _name(node))
            out.declared.append(inner)
        elif node.type in spec.routines and (body := _body(node, spec)) is not None:
            inner = _join(scope, _routine_name(node, spec))
            out.declared.append(inner)
            nested = set(_symbols_in(body, spec, inner)) if keep or node.type in spec.anonymous else set()
            out.seen |= nested
            if _kept(inner, keep):
                continue
            if not (any(_kept(n, keep) for n in nested) or (node.type in spec.anonymous and nested)):
                fold = None if body.has_error else _fold(inner, body, options, data)
                out.folds += [] if fold is None else [fold]
                continue
        if _kept(inner, keep):
            out.seen.update(_symbols_in(node, spec, inner))
            continue
        stack += [(child, inner) for child in reversed(node.children)]
    out.folds.sort(key=lambda f: f.start)
    out.seen.update(out.declared)
    return out


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


def _fold(symbol: str, body: "Node", options: _Options, data: bytes) -> Fold | None:
    spec = options.spec
    start, end = body.start_byte, body.end_byte
    first, last = body.start_point[0] + 1, body.end_point[0] + 1
    if spec.name == "python":
        if options.docstrings and (after := _after_docstring(body)) is not None:
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
    return line[: len(line) - len(line.lstrip(b" \t"))].decode()


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
