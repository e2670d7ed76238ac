"""Output that is already a record: JUnit XML, and the JSON of compilers, linters and test runners."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deeproot.runtime.context.extract.base import Diagnostic, Parsed
from deeproot.runtime.context.extract.golang import GoExtractor
from deeproot.runtime.context.extract.java import read_trace
from deeproot.runtime.context.extract.jstests import read_failure, with_detail
from deeproot.runtime.context.extract.pytest_section import read_section

_VALUE_START = re.compile(r"(?:^|(?<=\n)|(?<=\]))(?=[{\[])")


def load(text: str) -> Any:
    """A JSON document, a list of the objects of JSON lines, an XML root, or None when it is none of these."""
    bare = text.strip()
    if bare.startswith("<") and bare.endswith(">"):
        try:
            return ElementTree.fromstring(bare)
        except (ElementTree.ParseError, ValueError):
            return None
    if bare[:1] not in ("{", "["):
        return None
    try:
        return json.loads(bare)
    except (ValueError, RecursionError):
        return _several(bare)


def _several(text: str) -> list[Any] | None:
    """JSON values one after another (JSON lines, or gcc's one array a file); lines in between are skipped."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    start = 0
    while match := _VALUE_START.search(text, start):
        try:
            value, start = decoder.raw_decode(text, match.end())
            found.append(value)
        except (ValueError, RecursionError):
            start = match.end() + 1
    return found or None


def strings(document: Any) -> Iterator[str]:
    """All strings of a document, which is what the retention check reads instead of its escaped form."""
    if isinstance(document, ElementTree.Element):
        for element in document.iter():
            if element.tag in ("failure", "error"):
                yield element.get("message", "")
                yield element.text or ""
    elif isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for value in document.values():
            yield from strings(value)
    elif isinstance(document, list):
        for value in document:
            yield from strings(value)


def parse_native(document: Any) -> Parsed | None:
    """Records of a document whose shape is known; None for any other."""
    if isinstance(document, ElementTree.Element):
        return junit(document)
    for shape in _SHAPES:
        try:
            parsed = shape(document)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue  # a shape that only looked like it
        if parsed is not None:
            return parsed
    return None


def junit(root: ElementTree.Element) -> Parsed | None:
    """JUnit XML of pytest, Surefire, vitest and others: each test case with a failure or an error."""
    if root.tag not in ("testsuites", "testsuite"):
        return None
    found: list[Diagnostic] = []
    for case in root.iter("testcase"):
        for bad in case:
            if bad.tag not in ("failure", "error"):
                continue
            target = "::".join(p for p in (case.get("classname"), case.get("name")) if p)
            found.append(_junit_case(target, bad.get("message") or "", bad.get("type"), bad.text or ""))
    counts: dict[str, int] = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in [root] if root.tag == "testsuite" else root.iter("testsuite"):
        for key in counts:
            value = suite.get(key) or "0"
            counts[key] += int(value) if value.isdecimal() and len(value) < 10 else 0
    return Parsed(tuple(found), (", ".join(f"{n} {key}" for key, n in counts.items()),))


def _junit_case(target: str, message: str, kind: str | None, body: str) -> Diagnostic:
    lines = body.split("\n")
    if "\tat " in body:
        return read_trace([line for line in lines if line.strip()], "junit", target, 0)
    if re.search(r"^E  |\.py:\d+: ", body, re.M):
        return read_section(lines, target, 0)
    d = read_failure(lines if body.strip() else [message], "junit", target, 0)
    return Diagnostic(
        d.tool, d.message, d.severity, target, d.file, d.line, d.column, kind or d.code, frames=d.frames
    )


def _eslint(document: Any) -> Parsed | None:
    if not (isinstance(document, list) and document and "filePath" in document[0]):
        return None
    found = [
        Diagnostic(
            "eslint",
            m["message"],
            "error" if m.get("severity") == 2 else "warning",
            None,
            result["filePath"],
            m.get("line"),
            m.get("column"),
            m.get("ruleId"),
        )
        for result in document
        for m in result["messages"]
    ]
    return Parsed(tuple(found), (f"{len(found)} problems in {len(document)} files",))


def _ruff(document: Any) -> Parsed | None:
    if not (
        isinstance(document, list) and document and "location" in document[0] and "filename" in document[0]
    ):
        return None
    found = [
        Diagnostic(
            "ruff",
            m["message"],
            "error",
            None,
            m["filename"],
            m["location"]["row"],
            m["location"]["column"],
            m["code"],
        )
        for m in document
    ]
    return Parsed(tuple(found), (f"Found {len(found)} errors.",))


def _gcc(document: Any) -> Parsed | None:
    items = (
        [m for part in document for m in (part if isinstance(part, list) else [part])]
        if isinstance(document, list)
        else []
    )
    if not (items and "kind" in items[0] and "locations" in items[0]):
        return None
    found = []
    for m in items:
        caret = m["locations"][0]["caret"] if m["locations"] else {}
        notes = [_gcc_note(c) for c in m.get("children", [])]
        severity = "warning" if m["kind"] == "warning" else "error"
        place = (caret.get("file"), caret.get("line"), caret.get("column"))
        found.append(
            Diagnostic("gcc", m["message"], severity, None, *place, m.get("option"), detail=tuple(notes))
        )
    return Parsed(tuple(found))


def _gcc_note(child: dict[str, Any]) -> str:
    caret = child["locations"][0]["caret"] if child["locations"] else {}
    return (
        f"{caret.get('file')}:{caret.get('line')}:{caret.get('column')}: {child['kind']}: {child['message']}"
    )


def _mypy(document: Any) -> Parsed | None:
    if not (
        isinstance(document, list)
        and document
        and {"file", "line", "column", "message", "severity"} <= set(document[0])
    ):
        return None
    found = [
        Diagnostic(
            "mypy", m["message"], m["severity"], None, m["file"], m["line"], m["column"], m.get("code")
        )
        for m in document
    ]
    return Parsed(tuple(found))


def _cargo(document: Any) -> Parsed | None:
    if not (isinstance(document, list) and document and "reason" in document[0]):
        return None
    found = []
    for entry in document:
        m = entry.get("message")
        if entry["reason"] != "compiler-message" or not m["spans"]:
            continue
        span = next((s for s in m["spans"] if s["is_primary"]), m["spans"][0])
        source = span["text"][0]["text"].strip() if span.get("text") else None
        labels = [s["label"] for s in m["spans"] if s.get("label")]
        notes = [f"{c['level']}: {c['message']}" for c in m.get("children", [])]
        notes += [
            f"at {s['file_name']}:{s['line_start']}:{s['column_start']}"
            for c in m.get("children", [])
            for s in c.get("spans", [])
            if not s["file_name"].startswith("/rustc/")
        ]
        place = (span["file_name"], span["line_start"], span["column_start"])
        code = m["code"]["code"] if m.get("code") else None
        found.append(
            Diagnostic(
                "rustc",
                m["message"],
                m["level"],
                None,
                *place,
                code,
                source,
                detail=(*labels, *dict.fromkeys(notes)),
            )
        )
    return Parsed(tuple(found))


def _go_test(document: Any) -> Parsed | None:
    if not (isinstance(document, list) and document and "Action" in document[0]):
        return None
    outputs: dict[str, list[str]] = {}
    for event in document:
        if event["Action"] == "output":
            outputs.setdefault(event.get("Package", ""), []).append(event["Output"])
    found: list[Diagnostic] = []
    for package, parts in outputs.items():
        for d in GoExtractor().parse("".join(parts).split("\n")).diagnostics:
            target = f"{package}::{d.target}" if d.target and d.target != package else package
            found.append(
                Diagnostic(
                    d.tool,
                    d.message,
                    d.severity,
                    target,
                    d.file,
                    d.line,
                    d.column,
                    d.code,
                    frames=d.frames,
                    detail=d.detail,
                )
            )
    return Parsed(tuple(found))


def _jest(document: Any) -> Parsed | None:
    if not (isinstance(document, dict) and "testResults" in document and "numFailedTests" in document):
        return None
    found = []
    for suite in document["testResults"]:
        bad = [t for t in suite["assertionResults"] if t["status"] == "failed"]
        for t in bad:
            body = "\n".join(t["failureMessages"]).split("\n")
            d = read_failure(body, "jest", t["fullName"], 0, suite["name"])
            path = " › ".join([*t.get("ancestorTitles", []), t["title"]])
            found.append(with_detail(d, () if path == t["fullName"] else (path,)))
        if not bad and suite["status"] == "failed":
            found.append(read_failure(suite["message"].split("\n"), "jest", suite["name"], 0, suite["name"]))
    counts = f"{document['numFailedTests']} failed, {document['numPassedTests']} passed, {document['numTotalTests']} total"
    return Parsed(tuple(found), (counts,))


_SHAPES: Sequence[Callable[[Any], Parsed | None]] = (_jest, _go_test, _cargo, _mypy, _eslint, _ruff, _gcc)
