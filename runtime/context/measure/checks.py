"""Constraints that a machine can check: what a call must not do, or must do, and which sentences say so."""

import posixpath
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

from deeproot.runtime.context.measure.actions import ToolCall


class CheckError(ValueError):
    """A check is not written as it must be. The message names the constraint and the field."""


class Check(Protocol):
    """Decides whether one call violates one constraint."""

    def violated(self, call: ToolCall, before: Sequence[ToolCall]) -> str | None:
        """Why the call violates it; None: it does not. `before`: the run's calls up to this one, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class NeverChanges:
    """No file under a folder (`vendor/`), of that name, or that a pattern (`*.lock`) matches may be written or deleted."""

    path: str

    def violated(self, call: ToolCall, before: Sequence[ToolCall]) -> str | None:
        hit = next((changed for changed in call.changes if self._matches(changed)), None)
        return None if hit is None else f"changes {hit}"

    def _matches(self, changed: str) -> bool:
        wanted = posixpath.normpath(self.path)
        parts = changed.strip("/").split("/")
        names = ["/".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]
        if wanted.startswith("/"):
            return changed == wanted or changed.startswith(wanted.rstrip("/") + "/")
        return any(name == wanted or fnmatchcase(name, wanted) for name in names)


@dataclass(frozen=True, slots=True)
class NeverCalls:
    """These tools may not be called."""

    tools: frozenset[str]

    def violated(self, call: ToolCall, before: Sequence[ToolCall]) -> str | None:
        return f"calls {call.name}" if call.name in self.tools else None


@dataclass(frozen=True, slots=True)
class NeverRuns:
    """No call's command, or its arguments as they were written, may match a regular expression."""

    pattern: re.Pattern[str]

    def violated(self, call: ToolCall, before: Sequence[ToolCall]) -> str | None:
        found = self.pattern.search(call.command)
        return None if found is None else f"runs {found[0]!r}"


@dataclass(frozen=True, slots=True)
class RunsWith:
    """Wherever a program is run, its command must have these words."""

    program: str
    words: str

    def violated(self, call: ToolCall, before: Sequence[ToolCall]) -> str | None:
        for part in re.split(r"&&|\|\||[;\n|]", call.command):
            try:
                words = shlex.split(part)
            except ValueError:
                words = part.split()
            if self.program in (posixpath.basename(word) for word in words[:3]) and self.words not in part:
                return f"runs {self.program} without {self.words}"
        return None


@dataclass(frozen=True, slots=True)
class AtMost:
    """A tool may be called so many times."""

    tool: str
    times: int

    def violated(self, call: ToolCall, before: Sequence[ToolCall]) -> str | None:
        made = sum(earlier.name == self.tool for earlier in before) + 1
        return f"call {made} of {self.tool}" if call.name == self.tool and made > self.times else None


_NO = r"(?:Never|(?:You )?(?:must not|may not|do not|don't|cannot))"
_PATH = r"[`'\"]?(?P<path>[\w*.-]*[/.][\w*./-]*?)[`'\"]?"
_CHANGES = re.compile(
    rf"{_NO} (?:edit|modify|change|touch|write to|delete|alter|overwrite|remove)"
    rf"(?: (?:any )?(?:the )?(?:files?|anything|code)(?: in| under| inside)?)? {_PATH}(?: (?:folder|directory|file))?",
    re.IGNORECASE,
)
_RUNS = re.compile(rf"{_NO} (?:run|execute|use) [`'\"](?P<command>[^`'\"]+)[`'\"]", re.IGNORECASE)
_CALLS = re.compile(
    rf"{_NO} (?:call|use|invoke) (?:the )?(?:tool )?[`'\"]?(?P<tool>\w+)[`'\"]?(?: tool)?", re.IGNORECASE
)
_WITH = re.compile(
    r"(?:Always )?(?:run|call|invoke|start) [`'\"]?(?P<program>[\w.-]+)[`'\"]? with [`'\"]?(?P<words>-[^\s`'\"]+)[`'\"]?",
    re.IGNORECASE,
)


def check_of_text(text: str, tools: Collection[str]) -> Check | None:
    """The check that a sentence states, if all of it is of a known form; None: a machine cannot tell.

    Known: never edit PATH; never run `COMMAND`; never call TOOL (of `tools`); run PROGRAM with --FLAG. A sentence with a
    condition or an exception is of none.
    """
    sentence = text.strip().removesuffix(".")
    if found := _CHANGES.fullmatch(sentence):
        return NeverChanges(found["path"])
    if found := _RUNS.fullmatch(sentence):
        return NeverRuns(re.compile(rf"(?<![\w-]){re.escape(found['command'])}(?![\w-])"))
    if (found := _CALLS.fullmatch(sentence)) and found["tool"] in tools:
        return NeverCalls(frozenset([found["tool"]]))
    if found := _WITH.fullmatch(sentence):
        return RunsWith(found["program"], found["words"])
    return None


def read_checks(document: Any) -> dict[str, Check]:
    """Checks by constraint from a JSON document such as `{"Never edit vendor/.": {"never_changes": "vendor/"}}`.

    Forms: `never_changes` path, `never_calls` list of tools, `never_runs` regular expression, `runs_with` [program,
    words], `at_most` [tool, times]. Raises `CheckError`.
    """
    if not isinstance(document, Mapping):
        raise CheckError("the checks are no object; give one entry a constraint, under its exact text")
    return {text: _read_check(text, written) for text, written in document.items()}


def _read_check(text: str, written: Any) -> Check:
    where = f"check of {text!r}"
    if not isinstance(written, Mapping) or len(written) != 1:
        raise CheckError(f"{where}: give one of never_changes, never_calls, never_runs, runs_with, at_most")
    match dict(written):
        case {"never_changes": str(path)} if path:
            return NeverChanges(path)
        case {"never_calls": [*tools]} if tools and all(isinstance(tool, str) for tool in tools):
            return NeverCalls(frozenset(tools))
        case {"never_runs": str(pattern)} if pattern:
            try:
                return NeverRuns(re.compile(pattern))
            except re.error as error:
                raise CheckError(f"{where}: never_runs is no regular expression: {error}") from None
        case {"runs_with": [str(program), str(words)]}:
            return RunsWith(program, words)
        case {"at_most": [str(tool), int(times)]} if times >= 0:
            return AtMost(tool, times)
    (form,) = written
    raise CheckError(f"{where}: {form} is not of a known form; see the documentation of deeproot measure")
