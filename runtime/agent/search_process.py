"""Searches a workspace and prints what it finds: `python -m deeproot.runtime.agent.search_process ROOT '[PATTERN, PATH]'`."""

import json
import re
import resource
import sys
from contextlib import suppress

from blake3 import blake3

from deeproot.runtime.agent.jail import Jail, JailError

_MOST_BYTES = 8 << 20
_HITS, _LINE = 200, 300
_CPU_S = 30
"""It ends by itself even if nobody is left to end it."""
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"}
)


def search(jail: Jail, pattern: str, path: str) -> int:
    """Print each line that matches as `path:line: text`, and to standard error the BLAKE3 of each file with hits, as JSON;
    returns the exit code."""
    wanted = re.compile(pattern)
    hits = 0
    files: dict[str, str] = {}
    try:
        for name in jail.walk(path):
            if _SKIPPED & set(name.split("/")[:-1]):
                continue
            data = _text_of(jail, name)
            for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
                if not wanted.search(line):
                    continue
                if hits == _HITS:
                    break
                hits += 1
                files[name] = files.get(name) or blake3(data).hexdigest()
                more = len(line) - _LINE
                print(f"{name}:{number}: {line[:_LINE]}" + (f"[{more} more characters]" if more > 0 else ""))
            if hits == _HITS:
                print(f"[stopped at {_HITS} hits: narrow the pattern or the path]")
                break
    except JailError as error:
        print(error, file=sys.stderr)
        return 1
    json.dump(files, sys.stderr)
    return 0


def _text_of(jail: Jail, name: str) -> bytes:
    """The bytes of a text file; none of one that is binary, gone or too large."""
    with suppress(JailError):
        file = jail.read(name, _MOST_BYTES)
        if file.size <= _MOST_BYTES and b"\0" not in file.data[:8192]:
            return file.data
    return b""


def main() -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    print_as_utf8 = getattr(sys.stdout, "reconfigure")  # noqa: B009 - a TextIOWrapper, which the type does not say
    print_as_utf8(encoding="utf-8", errors="replace")
    return search(Jail(sys.argv[1]), *json.loads(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
