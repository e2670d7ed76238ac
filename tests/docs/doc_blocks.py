"""Reads the code blocks of README.md and docs/*.md."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Their examples build on each other and are run as one by tests beside the code that they show.
_TESTED_ELSEWHERE = {"context.md", "filters.md"}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: language, text, and the line on which the text starts."""

    path: Path
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    source = path.read_text()
    return [
        Block(path, match[1], match[2], source.count("\n", 0, match.start()) + 2)
        for match in _BLOCK.finditer(source)
    ]


def all_blocks(*languages: str) -> list[Block]:
    pages = (path for path in (ROOT / "docs").glob("*.md") if path.name not in _TESTED_ELSEWHERE)
    files = [ROOT / "README.md", *sorted(pages)]
    return [block for path in files for block in blocks_of(path) if block.language in languages]


def commands_of(block: Block) -> list[str]:
    """The commands of a shell block; a line that ends in a backslash goes on in the next."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
