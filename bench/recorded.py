"""The recorded runs that benchmarks are made on: 25 of an airline agent, two of coding agents."""

import gzip
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AIRLINE = Path(__file__).parent / "data" / "tau_airline_25.jsonl.gz"
_CONTEXT_TESTS = ROOT / "tests" / "runtime" / "context"
SWE_AGENT = (
    _CONTEXT_TESTS / "fixtures" / "sweagent_pydicom_1458.traj.json",
    _CONTEXT_TESTS / "data" / "sweagent_marshmallow_1867.traj.json",
)
"""They lie with the tests, and so are there in the repository only."""


def airline_documents(most: int = 25) -> list[dict[str, Any]]:
    """`id`, `reward` and `messages` (OpenAI's form) of each of the first runs."""
    with gzip.open(AIRLINE, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(most), strict=False)]


def swe_documents() -> list[dict[str, Any]]:
    """SWE-agent trajectories; none outside the repository."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in SWE_AGENT if path.is_file()]
