"""What a person, or a program, sees of a run while it goes on."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text as Line

from deeproot.runtime.agent.outcome import Outcome
from deeproot.runtime.agent.session import Watcher
from deeproot.runtime.agent.stream import Call, Text, Usage
from deeproot.runtime.context.calls import spell_call
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.working_set import Context

_CALL, _TAIL = 100, 400
_MILLION = 1_000_000
_COLOURS = {Zone.ROOT: "green", Zone.TRUNK: "cyan", Zone.LEAF: "yellow"}
_BAR = 40


@dataclass(slots=True)
class Tally:
    """Counts of a run. `prices` and `price_output`: dollars of a million tokens (None: dollars are not counted)."""

    prices: Prices | None = None
    price_output: float = 0.0
    turn: int = 0
    zones: Mapping[Zone, int] = field(default_factory=dict)
    staged: int = 0
    """Tokens of the newest prompt, as the working set counts them."""
    prompt: int = 0
    cached: int = 0
    output: int = 0
    cached_known: bool = False
    """Whether the server ever said what it had cached."""
    dollars: float = 0.0

    def add(self, usage: Usage) -> None:
        self.prompt += usage.prompt
        self.output += usage.output
        self.cached += usage.cached or 0
        self.cached_known = self.cached_known or usage.cached is not None
        if self.prices is not None:
            computed = usage.prompt - (usage.cached or 0)
            spent = (
                computed * self.prices.full * self.prices.write_premium
                + (usage.cached or 0) * self.prices.cached
            )
            self.dollars += (spent + usage.output * self.price_output) / _MILLION

    def summary(self) -> str:
        """`4 turns, 8,120 prompt tokens (6,900 cached), 310 output tokens, $0.0123`"""
        cached = (
            f" ({self.cached:,} cached)"
            if self.cached_known
            else " (the server does not say how many cached)"
        )
        tokens = (
            f"{self.prompt:,} prompt tokens{cached if self.prompt else ''}, {self.output:,} output tokens"
        )
        dollars = f", ${self.dollars:.4f}" if self.prices is not None else ""
        return f"{self.turn} turns, {tokens}{dollars}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "turns": self.turn,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached if self.cached_known else None,
            "output_tokens": self.output,
            "dollars": round(self.dollars, 6) if self.prices is not None else None,
        }


class View(Watcher, Protocol):
    """A watcher that is opened and closed around the run."""

    tally: Tally

    def close(self) -> None: ...


class PlainView:
    """A line for each thing that happens."""

    def __init__(self, stream: TextIO, tally: Tally) -> None:
        self._stream = stream
        self.tally = tally

    def close(self) -> None:
        pass

    def asked(self, turn: int, context: Context) -> None:
        note_context(self.tally, turn, context)
        zones = ", ".join(f"{zone.value} {count:,}" for zone, count in self.tally.zones.items())
        self._print(f"turn {turn}: {self.tally.staged:,} tokens ({zones})")

    def said(self, piece: Text) -> None:
        pass

    def replied(self, usage: Usage | None, ttft_s: float | None) -> None:
        if usage is not None:
            self.tally.add(usage)
            cached = "" if usage.cached is None else f" ({usage.cached:,} cached)"
            self._print(f"  reply: {usage.prompt:,} prompt tokens{cached}, {usage.output:,} output tokens")

    def call_started(self, call: Call) -> None:
        pass

    def call_ended(self, call: Call, outcome: Outcome) -> None:
        self._print(f"  {spelled(call)} -> {came_to(outcome)}")

    def noted(self, text: str) -> None:
        self._print(f"  {printable(text)}")

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class JsonView:
    """A JSON object a line."""

    def __init__(self, stream: TextIO, tally: Tally) -> None:
        self._stream = stream
        self.tally = tally

    def close(self) -> None:
        pass

    def asked(self, turn: int, context: Context) -> None:
        note_context(self.tally, turn, context)
        zones = {zone.value: count for zone, count in self.tally.zones.items()}
        self.put("asked", turn=turn, tokens=self.tally.staged, zones=zones)

    def said(self, piece: Text) -> None:
        pass

    def replied(self, usage: Usage | None, ttft_s: float | None) -> None:
        if usage is not None:
            self.tally.add(usage)
            self.put("replied", prompt=usage.prompt, cached=usage.cached, output=usage.output, ttft_s=ttft_s)

    def call_started(self, call: Call) -> None:
        self.put("call_started", id=call.id, name=call.name, arguments=call.arguments)

    def call_ended(self, call: Call, outcome: Outcome) -> None:
        self.put("call_ended", id=call.id, exit_code=outcome.exit_code, bytes=len(outcome.payload))

    def noted(self, text: str) -> None:
        self.put("note", text=text)

    def put(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}, ensure_ascii=True), file=self._stream, flush=True)


class LiveView(PlainView):
    """What happened, line by line, and under it what the run is at."""

    def __init__(self, stream: TextIO, tally: Tally, budget: int) -> None:
        super().__init__(stream, tally)
        self._budget = budget
        self._console = Console(file=stream, highlight=False)
        self._running: dict[str, tuple[Call, float]] = {}
        self._tail = ""
        self._live = Live(
            get_renderable=self.panel, console=self._console, refresh_per_second=8, transient=True
        )
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def said(self, piece: Text) -> None:
        self._tail = (self._tail + printable(piece.text))[-_TAIL:]

    def replied(self, usage: Usage | None, ttft_s: float | None) -> None:
        self._tail = ""
        super().replied(usage, ttft_s)

    def call_started(self, call: Call) -> None:
        self._running[call.id] = (call, time.monotonic())

    def call_ended(self, call: Call, outcome: Outcome) -> None:
        self._running.pop(call.id, None)
        super().call_ended(call, outcome)

    def panel(self) -> Group:
        """Zones and tokens of the newest prompt, what the run cost, what runs now, what the model is saying."""
        bar = Line()
        for zone, count in self.tally.zones.items():
            bar.append("█" * round(_BAR * count / max(1, self._budget)), style=_COLOURS[zone])
        bar.append("░" * max(0, _BAR - len(bar)), style="dim")
        bar.append(f" {self.tally.staged:,} of {self._budget:,} tokens")
        legend = Line("  ").join(
            Line(f"{zone.value} {count:,}", style=_COLOURS[zone]) for zone, count in self.tally.zones.items()
        )
        table = Table.grid(padding=(0, 1))
        table.add_row("prompt", bar)
        table.add_row("", legend)
        table.add_row("so far", self.tally.summary())
        now = time.monotonic()
        for call, began in self._running.values():
            table.add_row("runs", f"{spelled(call)}  {now - began:.0f} s")
        if self._tail:
            table.add_row(
                "says", Line(self._tail[-_TAIL:].replace("\n", " "), overflow="ellipsis", no_wrap=True)
            )
        return Group(table)

    def _print(self, text: str) -> None:
        self._console.print(Line(text))


def note_context(tally: Tally, turn: int, context: Context) -> None:
    """Take what a prompt holds into the tally."""
    tally.turn = turn
    tally.zones = dict(context.report.zone_tokens)
    tally.staged = int(context.token_ids.size)


def spelled(call: Call) -> str:
    """Name and arguments on one short line."""
    return printable(spell_call({"name": call.name, "arguments": call.arguments}, _CALL))


def came_to(outcome: Outcome) -> str:
    """How a call ended, on one short line."""
    if outcome.exit_code is None:
        return "outcome unknown"
    text = printable(outcome.payload[:_CALL].decode("utf-8", "replace")).replace("\n", " ")
    if outcome.exit_code:
        return f"exit code {outcome.exit_code}: {text}"
    return f"{len(outcome.payload):,} bytes"


def printable(text: str) -> str:
    """Text of a model or a tool, without anything that a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
