"""What compaction keeps of real runs, by strategy and budget.

`python -m deeproot.bench.compaction [--model model.gguf]`: 25 runs of an airline agent and two of coding agents are
replayed event by event. A run's budget is its fixed part (policy, tools, task) and 50, 25 or 12% of all its other tokens;
at that mark a compaction brings it down to five eighths of the share. Before each of the agent's actions that follows a
compaction, the prompt is searched for

* facts: identifiers, paths, numbers and settings in the action's own arguments that had been seen before. Whether they
  are needed is thus decided by what the agent did, and by nobody's judgement;
* constraints: the lines of the policy and the user's own words;
* open diagnostics: errors that no later run has shown to be gone, each with all its lines.

No model is asked: every strategy fills its template by the deterministic extractor. Without `--model`, tokens are bytes.
"""

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from deeproot.bench.recorded import airline_documents, swe_documents
from deeproot.bench.working_set import CHATML, byte_tokenizer
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.escrow import Escrow, unsaid
from deeproot.runtime.context.compaction.layers import default_layers, gentle_layers
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.compaction.strategy import Strategy
from deeproot.runtime.context.compaction.turns import TurnReader, all_calls
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.openai_messages import import_messages
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.swe_agent import import_trajectory
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

SHARES = (0.50, 0.25, 0.12)
WINDOW = "sliding window"
"""No compaction at all: the oldest turns are forgotten. What the strategies are to be better than."""
_LOW = 0.625
"""Low over high mark, as 0.50 over 0.80."""
_FACT = re.compile(r"[\w./@+-]*\d[\w./@+-]*|[\w.-]*/[\w./-]+|\b[a-z]+(?:_[a-z]+)+\b")
_MOST = 10**9


@dataclass(slots=True)
class Kept:
    """Of all that was looked for, what the prompts held."""

    found: Counter[str] = field(default_factory=Counter)
    wanted: Counter[str] = field(default_factory=Counter)
    compactions: int = 0
    prompts: int = 0
    over: int = 0
    """Prompts that could not be made to fit."""

    def note(self, kind: str, present: bool) -> None:
        self.wanted[kind] += 1
        self.found[kind] += present

    def share(self, kind: str) -> str:
        wanted = self.wanted[kind]
        return f"{self.found[kind] / wanted:.2f} of {wanted}" if wanted else "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="GGUF file whose tokenizer and template are used")
    parser.add_argument("--runs", type=int, default=25, help="how many of the airline runs")
    args = parser.parse_args(argv)
    segments, template, name = _tokenizer(args.model)
    groups = {"airline": airline_runs(args.runs), "SWE-agent": swe_runs()}
    print(
        f"Tokenizer: {name}. Runs: "
        + ", ".join(f"{len(runs)} {kind}" for kind, runs in groups.items())
        + ".\n"
    )
    print(
        "| runs | budget | strategy | facts kept | constraints kept | open diagnostics kept | compactions | prompts over budget |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for kind, runs in groups.items():
        for share in SHARES:
            for strategy in (WINDOW, *strategies()):
                kept = Kept()
                for run in runs:
                    replay(run, strategies().get(strategy), share, segments, template, kept)
                cells = (
                    kind,
                    f"{share:.0%}",
                    strategy,
                    *(kept.share(k) for k in ("fact", "constraint", "diagnostic")),
                )
                print(
                    "| "
                    + " | ".join((*cells, str(kept.compactions), f"{kept.over} of {kept.prompts}"))
                    + " |",
                    flush=True,
                )
    return 0


def airline_runs(most: int) -> list[EventLog]:
    """Each run as a log."""
    return [_imported(partial(_messages, d)) for d in airline_documents(most)]


def swe_runs() -> list[EventLog]:
    """The same for the coding agents' runs."""
    return [_imported(partial(_trajectory, d)) for d in swe_documents()]


def replay(
    run: EventLog,
    strategy: Strategy | None,
    share: float,
    segments: SegmentTokenizer,
    template: ChatTemplate,
    kept: Kept,
) -> None:
    """Go through a run as its agent did, compacting where it is due, and look before each action what is there."""
    budget = budget_of(run, share, segments, template)
    policy = SlidingWindow(budget.high_tokens) if strategy is None else ThreeZones(budget, reminder_tokens=0)
    working_set = WorkingSet(policy=policy, tokenizer=segments, template=template)
    compactor = None
    if strategy is not None:
        layers = default_layers() if strategy.name == "none" else gentle_layers()
        compactor = Compactor(working_set, budget=budget, strategy=strategy, layers=layers, keep_turns=2)
    log = EventLog.memory(clock=lambda: 0)
    escrow = Escrow()
    for event in run.read():
        if event.kind is EventKind.ASSISTANT and _begun(log):
            _look(log, event, run, working_set, escrow, kept)
        new = NewEvent(
            event.kind, run.payload(event), event.data, event.call_id, event.exit_code, event.time_ns
        )
        if compactor is None:
            log.extend([new])
        else:
            append(compactor, log, new)
    kept.compactions += 0 if compactor is None else compactor.compactions(log)


def budget_of(run: EventLog, share: float, segments: SegmentTokenizer, template: ChatTemplate) -> Budget:
    """Marks over the fixed part: high at `share` of the other tokens, low at five eighths of that."""
    whole = WorkingSet(policy=AppendOnly(), tokenizer=segments, template=template)
    first = next(e.seq for e in run.read() if e.kind is EventKind.ASSISTANT) - 1
    fixed, total = (whole.assemble(run, upto=upto).token_ids.size for upto in (first, len(run)))
    history = total - fixed
    high, low = fixed + share * history, fixed + _LOW * share * history
    budget = int(high / 0.8)
    return Budget(budget, low=low / budget)


def append(compactor: Compactor, log: EventLog, new: NewEvent) -> None:
    """Append an event as a host does, compacting if it is due; what cannot be made to fit is appended all the same."""
    size = len(log)
    try:
        asyncio.run(compactor.extend(log, [new]))
    except BudgetError:
        if len(log) == size:
            log.extend([new])


def _look(
    log: EventLog, action: Event, run: EventLog, working_set: WorkingSet, escrow: Escrow, kept: Kept
) -> None:
    """Search the prompt for what this action and the rules need."""
    kept.prompts += 1
    try:
        context = working_set.assemble(log)
    except BudgetError:
        kept.over += 1
        return
    compacted = any(e.data.get("part") == "stand_in" for e in log.read()) or bool(context.report.dropped)
    if not compacted:
        return
    text = "\n".join(_message_text(message) for message in context.messages)
    seen = "\n".join(
        log.text(e) for e in log.read() if e.kind in (EventKind.TOOL_RESULT, EventKind.INSTRUCTION)
    )
    for fact in sorted(set(_facts_of(action, run))):
        if fact in seen:
            kept.note("fact", fact in text)
    for rule in _rules(log):
        kept.note("constraint", rule in text)
    calls = all_calls(TurnReader(log, lambda seq: None).turns([e.seq for e in log.read()]))
    escrow.follow(calls)
    for found in escrow.open():
        kept.note("diagnostic", not unsaid(found.text, text))


def _message_text(message: object) -> str:
    assert isinstance(message, dict)
    calls = json.dumps(message.get("tool_calls", ""), ensure_ascii=False)
    return f"{message['content']}\n{calls}"


def _facts_of(action: Event, run: EventLog) -> Iterator[str]:
    """What the action's calls name; of an action in words only, nothing."""
    for turn in TurnReader(run, lambda seq: None).turns([action.seq]):
        for call in turn.calls:
            first = call.command.split("\n")[0] if call.shell else call.command
            yield from (
                match[0].strip("./") for match in _FACT.finditer(first) if len(match[0].strip("./")) >= 4
            )


def _rules(log: EventLog) -> Iterator[str]:
    """Lines of the policy and the user's words that say something."""
    for event in log.read():
        if event.kind is EventKind.INSTRUCTION and event.data.get("part") != "tools":
            yield from (line.strip() for line in log.text(event).split("\n") if len(line.strip()) >= 12)


def _begun(log: EventLog) -> bool:
    return any(event.kind is EventKind.ASSISTANT for event in log.read())


def _messages(document: dict[str, Any], log: EventLog) -> None:
    import_messages(log, document["messages"])


def _trajectory(document: dict[str, Any], log: EventLog) -> None:
    import_trajectory(log, document)


def _imported(fill: Callable[[EventLog], object]) -> EventLog:
    log = EventLog.memory(clock=lambda: 0)
    fill(log)
    return log


def _tokenizer(model: Path | None) -> tuple[SegmentTokenizer, ChatTemplate, str]:
    if model is None:
        return SegmentTokenizer(TokenizersAdapter(byte_tokenizer())), ChatTemplate(CHATML), "bytes"
    assets = ModelAssets.load(model)
    # The model's own template shows no tool calls: facts in them would count as lost whatever was kept.
    return SegmentTokenizer(assets.tokenizer), ChatTemplate(CHATML), model.name


if __name__ == "__main__":
    sys.exit(main())
