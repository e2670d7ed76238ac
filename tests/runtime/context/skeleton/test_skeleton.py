"""Skeletons: they keep every declaration, fold only bodies, and keep what is asked for."""

import ast
import dataclasses
import re
import shutil
import subprocess
import sys

import pytest

from deeproot.runtime.context.skeleton import fold as fold_module
from deeproot.runtime.context.skeleton.fold import skeleton_of_file
from deeproot.runtime.context.skeleton.languages import (
    LANGUAGES,
    SkeletonUnavailableError,
    language_of,
    parser_of,
    spec_of,
)

from .samples import SAMPLES, language, of_sample, parses

SIGNATURES = {
    "pool.py": [
        '"""Connection pool."""', "class Pool(Base, metaclass=Meta):", '"""Keeps connections."""', "size: int = LIMIT",
        "@property", "def free(self) -> int:", "# counted anew each time", "...  # folded 3 lines",
        "self, timeout: float | None = None, *, retry: bool = False", ") -> Conn:", "...  # folded 10 lines",
        "def short(self): return 1", 'def warn(message: str = "x" * 3) -> None:',
    ],
    "ring.c": [
        "#define CAP 16", "typedef struct ring { size_t head, tail; int slots[CAP]; } ring_t;",
        "static inline int ring_push(ring_t *r, int value)\n{ /* folded 4 lines */ }",
        "int (*ring_visitor(ring_t *r))(int)\n{ /* folded 3 lines */ }",
        "int ring_size(const ring_t *r) { return (int)(r->head - r->tail); }",
    ],
    "store.cpp": [
        "template <typename K, typename V>\nclass Store : public Base {",
        "explicit Store(std::size_t n) : limit_(n), items_{}\n    { /* folded 3 lines */ }",
        "~Store() override = default;", "bool operator==(const Store &other) const noexcept\n    { /* folded 3 lines */ }",
        "auto by_size = [](const auto &a, const auto &b) { /* folded 3 lines */ };",
        "void db::Store<int, int>::flush(int fd) const\n{ /* folded 3 lines */ }",
    ],
    "lib.rs": [
        "pub enum Token<'a> { Word(&'a str), Number(i64) }", "fn enter(&mut self, token: &Token<'_>) -> bool;",
        "fn leave(&mut self) { /* folded 3 lines */ }", "impl<'a> fmt::Display for Token<'a> {",
        "pub async fn parse<T>(text: &str) -> Result<Vec<T>, Error>\nwhere\n    T: From<i64>,\n{ /* folded 5 lines */ }",
        "mod inner {\n    pub(crate) fn helper(x: u8) -> u8 { /* folded 3 lines */ }",
    ],
    "pool.go": [
        "type Pool[T any] struct {", "func (p *Pool[T]) Acquire(n int) (item T, err error) { /* folded 6 lines */ }",
        "func New(size int) *Pool[int] { /* folded 3 lines */ }", "var handler = func(n int) int { /* folded 3 lines */ }",
    ],
    "Pool.java": [
        "public final class Pool<T extends AutoCloseable> implements Iterable<T> {", "static { /* folded 3 lines */ }",
        "public Pool(List<T> items) throws IllegalStateException { /* folded 3 lines */ }",
        "@Override\n    public T acquire(final long timeout) { /* folded 3 lines */ }",
        "interface Visitor { void visit(Object o); }", "State next() { /* folded 3 lines */ }",
        "Pair { /* folded 3 lines */ }",
    ],
    "store.js": [
        "export class Store extends Base {", "constructor(name) { /* folded 3 lines */ }",
        "async *rows(filter = () => true) { /* folded 3 lines */ }",
        "export const load = async (path) => { /* folded 3 lines */ };",
        "module.exports.save = function (path, rows) { /* folded 3 lines */ };",
        "(function () {\n  function hidden(a, b) { /* folded 3 lines */ }\n  window.hidden = hidden;\n})();",
    ],
    "store.ts": [
        "export interface Options<T = Row> { readonly limit?: number; map(row: Row): T }",
        "constructor(protected readonly options: Options<T>) { /* folded 3 lines */ }", "abstract close(): Promise<void>;",
        "get size(): number { /* folded 3 lines */ }",
        "export function isRow(value: unknown): value is Row { /* folded 3 lines */ }",
        "export const clamp = (n: number, low: number, high: number): number => { /* folded 3 lines */ };",
    ],
    "deploy.sh": [
        "log() { :; # folded 3 lines\n}", "function build { :; # folded 3 lines\n} > build.log",
        "    confirm() { :; # folded 3 lines\n    }\n    confirm\nfi\nbuild",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_signatures_stay_and_bodies_fold(name: str) -> None:
    result = of_sample(name)
    assert result.source_parses
    assert parses(result.text, language(name))
    missing = [part for part in SIGNATURES[name] if part not in result.text]
    assert missing == [], result.text
    assert len(result.text) < len(SAMPLES[name])


def test_all_nine_languages_have_a_sample() -> None:
    assert {language(name) for name in SAMPLES} == set(LANGUAGES) - {"tsx"}


@pytest.mark.parametrize(
    ("name", "keep", "whole", "folded"),
    [
        ("pool.py", "Pool.free", "rest = self.size - used", "folded 10 lines"),
        ("pool.py", "attempt", "first.lock()", "folded 3 lines"),
        ("pool.py", "Pool", "return attempt()", "folded 3 lines"),
        ("ring.c", "ring_push", "return -1;", "folded 3 lines"),
        ("store.cpp", "operator==", "return false;", "folded 3 lines"),
        ("lib.rs", "Token.fmt", "match self {", "folded 5 lines"),
        ("pool.go", "Pool.Acquire", "defer p.mu.Unlock()", "folded 3 lines"),
        ("Pool.java", "Pool.acquire", "synchronized (items) {", "folded 3 lines"),
        ("Pool.java", "State", "int n = ordinal() + 1;", "folded 3 lines"),
        ("store.js", "hidden", "const c = a + b;", "folded 3 lines"),
        ("store.js", "load", "JSON.parse(text)", "folded 3 lines"),
        ("store.ts", "Util.clamp", "const floor", "folded 3 lines"),
        ("deploy.sh", "build", "make -j4 all", "folded 3 lines"),
    ],
)
def test_a_kept_symbol_stands_whole(name: str, keep: str, whole: str, folded: str) -> None:
    without, result = of_sample(name), of_sample(name, keep=[keep])
    assert whole not in without.text
    assert whole in result.text
    assert folded in result.text
    assert result.missing == ()
    assert parses(result.text, language(name))


def test_a_name_that_is_not_there_is_said() -> None:
    assert of_sample("pool.py", keep=["Pool.acquire", "Pool.release"]).missing == ("Pool.release",)


def test_function_docstrings_on_request() -> None:
    text = of_sample("pool.py", docstrings=True).text
    assert '"""Wait for a connection."""' in text
    assert "first.lock()" not in text
    ast.parse(text)


def test_folds_tell_symbol_and_lines() -> None:
    source = SAMPLES["pool.py"].split("\n")
    for fold in of_sample("pool.py").folds:
        n = int(re.search(r"folded (\d+) lines?", fold.marker)[1])  # type: ignore[index]
        assert n == fold.last - fold.first + 1
        assert source[fold.first - 1].strip()
    assert [f.symbol for f in of_sample("pool.py").folds] == ["Pool.free", "Pool.acquire", "warn"]


@pytest.mark.parametrize(
    ("name", "command"),
    [("deploy.sh", ["bash", "-n"]), ("store.js", ["node", "--input-type=module", "--check"])],
)
def test_the_languages_own_parser_takes_it(name: str, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, input=of_sample(name).text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("marker", "until"),
    [("((", None), ("...", "return 1")],
    ids=["does not parse", "swallows the next method"],
)
def test_a_fold_that_would_break_the_source_is_not_made(
    monkeypatch: pytest.MonkeyPatch, marker: str, until: str | None
) -> None:
    """A wrong fold stands for a grammar that mistakes where a body ends or what may stand in its place."""
    made = fold_module._fold
    end = SAMPLES["pool.py"].index(until) + len(until) if until else None

    def wrong(symbol: str, *rest: object) -> object:
        fold = made(symbol, *rest)  # type: ignore[arg-type]
        if fold is None or symbol != "Pool.acquire":
            return fold
        return dataclasses.replace(fold, marker=marker, end=end or fold.end)

    monkeypatch.setattr(fold_module, "_fold", wrong)
    result = of_sample("pool.py")
    assert [f.symbol for f in result.folds] == ["Pool.free", "warn"]
    assert parses(result.text, "python")


def test_a_missing_wheel_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_rust", None)
    with pytest.raises(
        SkeletonUnavailableError, match=r"skeletons of rust need .*pip install 'deeproot\[context\]'"
    ):
        parser_of.__wrapped__("rust")


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ValueError, match="language is 'cobol'; give one of bash, c, cpp"):
        spec_of("cobol")


@pytest.mark.parametrize(
    ("path", "first", "want"),
    [
        ("a/b.PY", "", "python"),
        ("x.hpp", "", "cpp"),
        ("run", "#!/bin/sh -e", "bash"),
        ("run", "#!/usr/bin/env -S python3 -u", "python"),
        ("run", "#!", None),
        ("run", "#!/bin/sh", "bash"),
        ("run", "#!/usr/bin/env python3", "python"),
        ("run", "#!/usr/bin/env node", "javascript"),
        ("notes.txt", "", None),
    ],
)
def test_language_by_name_or_first_line(path: str, first: str, want: str | None) -> None:
    assert language_of(path, first) == want


def test_nothing_heavy_is_imported_before_a_skeleton_is_asked_for() -> None:
    code = (
        "import sys, deeproot.runtime.context.skeleton.fold, deeproot.runtime.context.extract.extract,"
        " deeproot.runtime.context.filters.pipeline;"
        "print([m for m in ('torch', 'triton', 'transformers', 'tree_sitter') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_is_read_by_its_name_and_a_header_by_the_grammar_that_takes_it() -> None:
    plain, templated = (
        skeleton_of_file("a.h", SAMPLES["ring.c"]),
        skeleton_of_file("a.h", SAMPLES["store.cpp"]),
    )
    assert plain is not None
    assert plain.source_parses
    assert templated is not None
    assert templated.source_parses
    assert "operator==(const Store &other) const noexcept\n    { /* folded 3 lines */ }" in templated.text
    assert skeleton_of_file("notes.txt", "plain words") is None
    script = skeleton_of_file("deploy", SAMPLES["deploy.sh"], keep=["build"])
    assert script is not None
    assert "make -j4 all" in script.text
