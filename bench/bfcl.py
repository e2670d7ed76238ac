"""The function schemas of BFCL's simple, multiple and parallel sets; see `bfcl_schemas.md`."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("bfcl_schemas.jsonl.gz")


@dataclass(frozen=True, slots=True)
class Entry:
    """A question and the functions that may be called to answer it."""

    id: str
    """Such as `simple_python_0`."""
    question: str
    functions: tuple[dict[str, Any], ...]
    """Each with `name` and `parameters`, a JSON schema."""

    @property
    def group(self) -> str:
        """The set that it is of, such as `simple_python`."""
        return self.id.rsplit("_", 1)[0]

    def tools(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """The functions in OpenAI's form."""
        flag = {"strict": True} if strict else {}
        return [{"type": "function", "function": {**function, **flag}} for function in self.functions]


def read_entries(path: Path = PATH) -> list[Entry]:
    """All entries, in the order of the sets."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Entry(row["id"], row["question"], tuple(row["functions"])) for row in rows]
