"""Real outputs, logs of observations, and the way back from a filter's result."""

from pathlib import Path

from deeproot.runtime.context.events import payload_text
from deeproot.runtime.context.filters.base import (
    FilterContext,
    FilterResult,
)
from deeproot.runtime.context.filters.observation import Action, Observation, ObservationLog

FIXTURES = Path(__file__).parents[1] / "fixtures"
OUTPUTS = FIXTURES / "tool_outputs"
ALONE = FilterContext()


def output(name: str) -> str:
    return payload_text((OUTPUTS / name).read_bytes())


def rebuild(text: str, result: FilterResult) -> str:
    """The input again, from the output and from the input's dropped lines alone."""
    lines, out, rebuilt, at = text.split("\n"), result.text.split("\n"), [], 0
    done = 0
    for drop in result.drops:
        same = drop.first - 1 - done
        rebuilt += out[at : at + same] + lines[drop.first - 1 : drop.last]
        at, done = at + same + drop.kept, drop.last
    return "\n".join(rebuilt + out[at:])


def log_of(*items: tuple[str, str | None, tuple[str, ...]]) -> ObservationLog:
    return ObservationLog(
        Observation(10 + i, Action("", shows, changes), text, float(i))
        for i, (text, shows, changes) in enumerate(items)
    )
