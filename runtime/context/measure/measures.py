"""The measures of a run, from its log alone. `docs/checkpoints.md` gives each formula in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from deeproot.engine.prefill_floor import DenseModel, prefill_floor_seconds
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.measure.actions import Run, Shown, Turn
from deeproot.runtime.context.measure.prices import PriceTable, cost_of_calls
from deeproot.runtime.context.measure.replay import StagedCall

HORIZONS = (10, 25, 50, 100)
FAR = 5
"""Turns between two observations from which on joining them counts as joining distant ones."""


@dataclass(frozen=True, slots=True)
class Share:
    """`part` of `whole` things; None if there are none."""

    part: int
    whole: int

    @property
    def value(self) -> float | None:
        return self.part / self.whole if self.whole else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the task ended, as whoever judges it recorded it."""

    passed: bool
    judge: str
    turns: int
    """Messages of the model up to then."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the server reported of the run's calls."""

    calls: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: tuple[float, ...]

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The same calls in a cache that forgets nothing before its time: the best that any server can do."""

    prompt_tokens: int
    cached_tokens: int
    dollars: float
    floor_s: float | None
    """None: no model or device was named."""

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Measures:
    """All of them. Lists of turns name the messages of the model by event."""

    turns: int
    actions: int
    compactions: int
    outcome: Outcome | None
    r_assoc: Share
    eps_stale: Share
    stale: tuple[tuple[int, str], ...]
    c_r: float | None
    """Of the last call; None without calls."""
    c_r_mean: float | None
    u_eff: float | None
    s_cr: tuple[float, ...]
    """At index k: after k compactions. Empty without constraints."""
    served: Served | None
    replayed: Replayed


def measure(
    log: EventLog,
    run: Run,
    calls: Sequence[StagedCall],
    *,
    output_tokens: Sequence[int],
    prices: PriceTable,
    model: DenseModel | None = None,
    device: str = "H100 SXM",
) -> Measures:
    """Measure a run. `calls`: its working sets, one a turn; `output_tokens`: of each turn's message.

    Raises ValueError if they are not as many as the run has turns, or if there is no such device.
    """
    if not len(calls) == len(output_tokens) == len(run.turns):
        raise ValueError(f"{len(calls)} calls and {len(output_tokens)} outputs for {len(run.turns)} turns")
    actions = run.actions
    stale = tuple((turn.seq, turn.stale) for turn in actions if turn.stale)
    ratios = [call.raw_tokens / call.token_ids.size for call in calls if call.token_ids.size]
    return Measures(
        turns=len(run.turns),
        actions=len(actions),
        compactions=calls[-1].compactions if calls else 0,
        outcome=outcome_of(log),
        r_assoc=r_assoc(actions, {call.seq: call for call in calls}),
        eps_stale=Share(len(stale), len(actions)),
        stale=stale,
        c_r=ratios[-1] if ratios else None,
        c_r_mean=fmean(ratios) if ratios else None,
        u_eff=u_eff(run.turns, calls),
        s_cr=s_cr(run.constraints, calls),
        served=served(log),
        replayed=_replayed(calls, output_tokens, prices, model, device),
    )


def tcr(outcomes: Sequence[Outcome], horizon: int) -> Share:
    """TCR_H: of the tasks whose outcome was recorded, those that passed within `horizon` turns."""
    return Share(sum(o.passed and o.turns <= horizon for o in outcomes), len(outcomes))


def r_assoc(actions: Sequence[Turn], calls: Mapping[int, StagedCall]) -> Share:
    """R_assoc: of the actions that join facts of two observations at least `FAR` turns apart, those whose working set
    held both.

    The facts of an action come from the newest observation that shows each; the oldest and the newest of those are the
    two that are joined, and all that the action takes from them must be there.
    """
    joins = kept = 0
    for turn in actions:
        sources = sorted(turn.refers.values(), key=lambda shown: shown.seq)
        if not sources or sources[-1].turn - sources[0].turn < FAR:
            continue
        joins += 1
        staged: set[str] = set()
        for line in calls[turn.seq].lines:
            staged |= line.facts
        kept += _taken(turn, sources[0]) | _taken(turn, sources[-1]) <= staged
    return Share(kept, joins)


def _taken(turn: Turn, shown: Shown) -> set[str]:
    return {fact for fact, source in turn.refers.items() if source.seq == shown.seq}


def u_eff(turns: Sequence[Turn], calls: Sequence[StagedCall]) -> float | None:
    """U_eff: of the staged tokens, those in lines that hold a fact which this action or a later one repeats; mean over
    the calls. None without calls."""
    wanted: set[str] = set()
    shares = []
    for turn, call in zip(reversed(turns), reversed(calls), strict=True):
        wanted |= turn.refers.keys()
        total = sum(line.tokens for line in call.lines)
        used = sum(line.tokens for line in call.lines if not wanted.isdisjoint(line.facts))
        shares.append(used / total if total else 0.0)
    return fmean(shares) if shares else None


def s_cr(constraints: Mapping[str, int], calls: Sequence[StagedCall]) -> tuple[float, ...]:
    """S_CR(k), k from 0: mean over the constraints of whether each stood verbatim in the working set after every one of
    the first k compactions. Before a constraint was said it counts as kept."""
    if not constraints:
        return ()
    kept = dict.fromkeys(constraints, True)
    scores = [1.0]
    for call in calls:
        if call.compactions < len(scores):
            continue
        for text, seq in constraints.items():
            kept[text] = kept[text] and (seq > call.seq or text in call.text)
        scores.append(sum(kept.values()) / len(kept))
    return tuple(scores)


def outcome_of(log: EventLog) -> Outcome | None:
    """The last recorded outcome (`record.outcome`), or None. The model's own word is never one."""
    turns = 0
    found = None
    for event in log.read():
        turns += event.kind is EventKind.ASSISTANT
        if event.kind is EventKind.STATE_CHANGE and event.data.get("part") == "outcome":
            found = Outcome(event.data.get("passed") is True, str(event.data.get("judge", "")), turns)
    return found


def served(log: EventLog) -> Served | None:
    """What `record.usage` recorded of the calls, or None if nothing was."""
    found = [e.data for e in log.read() if e.kind is EventKind.STATE_CHANGE and e.data.get("part") == "usage"]
    if not found:
        return None
    return Served(
        calls=len(found),
        prompt_tokens=sum(int(data.get("prompt_tokens", 0)) for data in found),
        cached_tokens=sum(int(data.get("cached_tokens", 0)) for data in found),
        output_tokens=sum(int(data.get("output_tokens", 0)) for data in found),
        ttft_s=tuple(float(data["ttft_s"]) for data in found if data.get("ttft_s") is not None),
    )


def _replayed(
    calls: Sequence[StagedCall],
    output_tokens: Sequence[int],
    prices: PriceTable,
    model: DenseModel | None,
    device: str,
) -> Replayed:
    costs = cost_of_calls(
        [call.token_ids for call in calls], [call.time_ns for call in calls], output_tokens, prices
    )
    floor = None
    if model is not None:
        floor = sum(prefill_floor_seconds(cost.computed, cost.cached, model, device) for cost in costs)
    return Replayed(
        prompt_tokens=sum(cost.prompt for cost in costs),
        cached_tokens=sum(cost.cached for cost in costs),
        dollars=sum(cost.dollars for cost in costs),
        floor_s=floor,
    )


def wasted_turns(turns: int, eps_stale: float, turns_lost: float) -> float:
    """Turns expected to be lost where each stale action costs `turns_lost` of them."""
    return turns * eps_stale * turns_lost
