"""The nine languages: which wheel brings the grammar, which nodes are bodies, and how a marker is written."""

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Parser


class SkeletonUnavailableError(ImportError):
    """A package that skeletons need is not installed."""


@dataclass(frozen=True, slots=True)
class LanguageSpec:
    """What folding must know about a language."""

    name: str
    package: str
    """Import name of the grammar's wheel."""
    extensions: tuple[str, ...]
    bodies: frozenset[str]
    """Node types that are the body of a routine."""
    routines: frozenset[str]
    """Node types that have such a body as their `body` (or as a child)."""
    anonymous: frozenset[str]
    """Routines without a name of their own; around declarations they are opened, not folded."""
    scopes: frozenset[str]
    """Node types that give a qualified name to what stands in them."""
    marker: str = "{{ /* folded {n} lines */ }}"
    factory: str = "language"


_JS_BODIES = frozenset({"statement_block"})
_JS_ROUTINES = frozenset(
    {
        "function_declaration", "generator_function_declaration", "method_definition", "function_expression",
        "generator_function", "arrow_function", "class_static_block",
    }
)  # fmt: skip
_JS_ANONYMOUS = frozenset({"function_expression", "generator_function", "arrow_function"})
_JS_SCOPES = frozenset(
    {"class_declaration", "class", "abstract_class_declaration", "internal_module", "module"}
)
_C_SCOPES = frozenset({"class_specifier", "struct_specifier", "union_specifier", "namespace_definition"})

LANGUAGES: dict[str, LanguageSpec] = {
    spec.name: spec
    for spec in (
        LanguageSpec(
            "python", "tree_sitter_python", (".py", ".pyi"), frozenset({"block"}), frozenset({"function_definition"}),
            frozenset(), frozenset({"class_definition"}), "...  # folded {n} lines",
        ),
        LanguageSpec(
            "c", "tree_sitter_c", (".c", ".h"), frozenset({"compound_statement"}), frozenset({"function_definition"}),
            frozenset(), _C_SCOPES,
        ),
        LanguageSpec(
            "cpp", "tree_sitter_cpp", (".cpp", ".cc", ".cxx", ".hpp", ".hh", ".hxx", ".cu", ".cuh"),
            frozenset({"compound_statement"}), frozenset({"function_definition", "lambda_expression"}),
            frozenset({"lambda_expression"}), _C_SCOPES,
        ),
        LanguageSpec(
            "rust", "tree_sitter_rust", (".rs",), frozenset({"block"}), frozenset({"function_item"}), frozenset(),
            frozenset({"impl_item", "trait_item", "mod_item"}),
        ),
        LanguageSpec(
            "go", "tree_sitter_go", (".go",), frozenset({"block"}),
            frozenset({"function_declaration", "method_declaration", "func_literal"}), frozenset({"func_literal"}),
            frozenset(),
        ),
        LanguageSpec(
            "java", "tree_sitter_java", (".java",), frozenset({"block", "constructor_body"}),
            frozenset(
                {
                    "method_declaration", "constructor_declaration", "compact_constructor_declaration",
                    "static_initializer", "lambda_expression",
                }
            ),
            frozenset({"lambda_expression"}),
            frozenset(
                {
                    "class_declaration", "interface_declaration", "enum_declaration", "record_declaration",
                    "annotation_type_declaration",
                }
            ),
        ),
        LanguageSpec(
            "javascript", "tree_sitter_javascript", (".js", ".mjs", ".cjs", ".jsx"), _JS_BODIES, _JS_ROUTINES,
            _JS_ANONYMOUS, _JS_SCOPES,
        ),
        LanguageSpec(
            "typescript", "tree_sitter_typescript", (".ts", ".mts", ".cts"), _JS_BODIES, _JS_ROUTINES, _JS_ANONYMOUS,
            _JS_SCOPES, factory="language_typescript",
        ),
        LanguageSpec(
            "tsx", "tree_sitter_typescript", (".tsx",), _JS_BODIES, _JS_ROUTINES, _JS_ANONYMOUS, _JS_SCOPES,
            factory="language_tsx",
        ),
        LanguageSpec(
            "bash", "tree_sitter_bash", (".sh", ".bash"), frozenset({"compound_statement"}),
            frozenset({"function_definition"}), frozenset(), frozenset(), "{{ :; # folded {n} lines\n}}",
        ),
    )
}  # fmt: skip


def language_of(path: str, first_line: str = "") -> str | None:
    """The language of a file by its name, or by the `#!` line of a script; None when it is none of these."""
    suffix = PurePath(path).suffix.lower()
    for spec in LANGUAGES.values():
        if suffix in spec.extensions:
            return spec.name
    if first_line.startswith("#!"):
        program = _program(first_line)
        if program in ("sh", "bash", "dash"):
            return "bash"
        if program.startswith("python"):
            return "python"
        if program == "node":
            return "javascript"
    return None


def _program(first_line: str) -> str:
    """The program that a `#!` line names, through `env` where it stands before it."""
    words = [w.rsplit("/", 1)[-1] for w in first_line[2:].split() if not w.startswith("-") and "=" not in w]
    return next((w for w in words if w != "env"), "")


def spec_of(language: str) -> LanguageSpec:
    """Raises ValueError naming the languages that there are."""
    if language not in LANGUAGES:
        raise ValueError(f"language is {language!r}; give one of {', '.join(sorted(LANGUAGES))}")
    return LANGUAGES[language]


@cache
def parser_of(language: str) -> "Parser":
    """A parser for the language. Raises SkeletonUnavailableError when a wheel is missing."""
    spec = spec_of(language)
    try:
        tree_sitter = importlib.import_module("tree_sitter")
        grammar = importlib.import_module(spec.package)
    except ImportError as error:
        raise SkeletonUnavailableError(
            f"skeletons of {spec.name} need {error.name}, which is not installed; run: pip install 'deeproot[context]'"
        ) from error
    parser: Parser = tree_sitter.Parser(tree_sitter.Language(getattr(grammar, spec.factory)()))
    return parser
