"""From a tool call to what it did to files: shell commands, SWE-agent's commands, and the usual editor tools."""

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

from deeproot.runtime.context.filters.observation import Action

_SHOWING = ("cat", "head", "tail", "nl", "less", "more", "bat")
_SWE_AGENT = ("open", "create", "edit", "insert", "append", "goto", "scroll_up", "scroll_down")
_HEADER = re.compile(r"^\[File: (\S+) \(\d+ lines total\)\]", re.M)
_REJECTED = re.compile(
    r"your (?:proposed )?edit has (?:introduced|not been applied)|edit was not applied", re.I
)
_PATCHED = re.compile(r"^(?:patching file|Applied patch(?: to)?) '?([^'\s]+)'?", re.M)
_REDIRECT = re.compile(r"(?<![0-9&<>])>>?\s*(?![&>\s])([^\s;|&<>]+)")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1.*?^\s*\2\s*$", re.S | re.M)
_EDITOR_CHANGES = ("create", "str_replace", "insert", "undo_edit", "write", "append", "edit")


class ActionReader:
    """Reads actions one after another, since a shell has a working directory and SWE-agent an open file.

    What it does not understand is an action on no file. It never guesses: a path that it cannot place is left
    relative, and two spellings of one file that it cannot tell to be one count as two.
    """

    def __init__(self, cwd: str | None = None) -> None:
        self._cwd = cwd
        self._open: str | None = None

    def enter(self, folder: str) -> None:
        """Tell the working directory, where the host knows it (SWE-agent's state says it after each step)."""
        self._cwd = folder

    def command(self, text: str, output: str = "", exit_code: int | None = None) -> Action:
        """A shell or SWE-agent command with its output. A command that failed is taken to have changed nothing."""
        text = text.strip()
        words = text.split(None, 2)
        word = words[0] if words else ""
        header = _HEADER.search(output)
        if header and word in _SWE_AGENT:
            return self._swe_agent(word, text, output, header[1])
        return self._shell(text, output, exit_code)

    def tool_call(
        self, name: str, arguments: Mapping[str, Any], output: str = "", exit_code: int | None = None
    ) -> Action:
        """A call by name and arguments: an editor (`path`, and `command` for its verb), a reader, writer or shell."""
        verb = str(arguments.get("command", arguments.get("cmd", "")))
        path = arguments.get("path", arguments.get("file_path", arguments.get("filename")))
        if not isinstance(path, str):
            return self.command(verb, output, exit_code) if verb else Action(name)
        said, full = f"{name} {verb}".strip(), self._full(path)
        if verb == "view" or (not verb and re.search(r"read|view|open|cat", name)):
            return Action(said, shows=full)
        if verb in _EDITOR_CHANGES or (
            not verb and re.search(r"write|edit|create|replace|insert|delete|patch", name)
        ):
            return Action(said, changes=(full,) if exit_code in (None, 0) else ())
        return Action(said)

    def _swe_agent(self, word: str, text: str, output: str, shown: str) -> Action:
        parts = text.split()
        if word in ("open", "create") and len(parts) > 1:
            self._open = parts[1].strip("\"'")
        if self._open and shown.startswith("/") and shown.endswith("/" + self._open):
            self._cwd = shown[: -len(self._open) - 1]  # the view spells the open file in full
        shown = self._full(shown)
        if word in ("edit", "create", "insert", "append"):
            if _REJECTED.search(output):
                return Action(text)  # the view is of an edit that did not happen
            return Action(text, shows=shown, changes=(shown,))
        return Action(text, shows=shown)

    def _shell(self, text: str, output: str, exit_code: int | None) -> Action:
        bare = _HEREDOC.sub(" ", text)
        shows: list[str] = []
        changes: list[str] = []
        simple = re.split(r"&&|\|\||;|\n", bare)
        for part in simple:
            piped = "|" in part
            changes += _REDIRECT.findall(part)
            try:
                words = shlex.split(_REDIRECT.sub(" ", part.split("|")[0]))
            except ValueError:
                continue  # unbalanced quotes: no command that can be read
            if not words:
                continue
            if words[0] == "cd" and len(words) == 2 and exit_code in (None, 0):
                self._cwd = posixpath.normpath(posixpath.join(self._cwd or "", words[1]))
            changes += _changed(words)
            if piped and (tee := re.search(r"\|\s*tee\s+(?:-a\s+)?([^\s|;&]+)", part)):
                changes.append(tee[1])
            if not piped and not _REDIRECT.search(part):
                shows += _shown(words)
        if re.search(r"\bpatch\b|git apply", bare):
            changes += _PATCHED.findall(output)
        one = (
            len(shows) == 1 and sum(bool(p.strip()) and not p.strip().startswith("cd ") for p in simple) == 1
        )
        places = tuple(dict.fromkeys(self._full(c) for c in changes if c != "/dev/null"))
        return Action(
            text,
            shows=self._full(shows[0]) if one and exit_code in (None, 0) else None,
            changes=places if exit_code in (None, 0) else (),
        )

    def _full(self, path: str) -> str:
        path = path.strip("\"'")
        return posixpath.normpath(posixpath.join(self._cwd, path) if self._cwd else path)


def _shown(words: list[str]) -> list[str]:
    """Files that a simple command prints."""
    if words[0] in _SHOWING:
        skip = words[0] in ("head", "tail") and any(w in ("-n", "-c") for w in words)
        files = [w for w in words[1:] if not w.startswith("-")]
        return files[1:] if skip else files
    if words[0] == "sed" and "-n" in words and "-i" not in words:
        return [w for w in words[1:] if not w.startswith("-")][1:]
    return []


def _changed(words: list[str]) -> list[str]:
    """Files that a simple command writes, moves or deletes."""
    plain = [w for w in words[1:] if not w.startswith("-")]
    if words[0] in ("rm", "unlink", "mv", "truncate"):
        return plain
    if words[0] in ("cp", "install") and len(plain) >= 2:
        return plain[-1:]
    if words[0] == "sed" and any(w == "--in-place" or re.match(r"-[a-zA-Z]*i", w) for w in words[1:]):
        return plain if "-e" in words else plain[1:]
    if words[0] == "git" and len(words) > 1 and words[1] in ("checkout", "restore", "rm", "mv"):
        return plain[plain.index(words[1]) + 1 :] if "--" in words or words[1] != "checkout" else []
    return []
