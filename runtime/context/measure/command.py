"""`deeproot measure`: what one or more logs of agents' runs say about how their contexts were kept."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeproot.engine.prefill_floor import DenseModel
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.calls import calls_of, spell_call
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.measure.actions import read_run
from deeproot.runtime.context.measure.checks import Check, read_checks
from deeproot.runtime.context.measure.measures import HORIZONS, Measures, measure, tcr
from deeproot.runtime.context.measure.prices import PriceTable
from deeproot.runtime.context.measure.probe import Probe, probe
from deeproot.runtime.context.measure.replay import Replayer, RoughTokenizer
from deeproot.runtime.context.measure.table import as_table
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.template import read_template
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter

DONE, FAILED = 0, 2
_WHOLE_CALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One log."""

    path: str
    measures: Measures
    probe: Probe


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/cli.py` declares them); returns the exit code: 0, or 2 if something is amiss."""
    try:
        replayer = _replayer(args)
        prices = PriceTable(
            input=args.price,
            cached=args.price_cached,
            output=args.price_output,
            write_premium=args.write_premium,
            min_tokens=args.min_cached,
            increment=args.cache_increment,
            ttl_s=args.cache_ttl,
        )
        model = _model(args)
        checks = _checks(args.checks)
    except (OSError, ValueError, TemplateError) as error:
        return _fail(str(error))
    results = []
    for path in args.logs:
        try:
            results.append(_measure(path, replayer, prices, model, args.device, checks))
        except (OSError, ValueError, EventLogError, TemplateError) as error:
            return _fail(f"{path}: {error}")
    outcomes = [r.measures.outcome for r in results if r.measures.outcome is not None]
    shares = {horizon: tcr(outcomes, horizon) for horizon in HORIZONS}
    if args.json:
        document = {
            "logs": [_document(result) for result in results],
            "tcr": {str(h): {**asdict(share), "value": share.value} for h, share in shares.items()},
        }
        print(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        print("\n\n".join(as_table(r.path, r.measures, r.probe, exact=bool(args.tokenizer)) for r in results))
        print(_tcr_line(len(outcomes), {h: share.value for h, share in shares.items()}))
    return DONE


def _measure(
    path: str,
    replayer: Replayer,
    prices: PriceTable,
    model: DenseModel | None,
    device: str,
    checks: dict[str, Check],
) -> Measured:
    if not Path(path).is_file():
        raise EventLogError("there is no such file; give a log that EventLog.open has written")
    with EventLog.open(path) as log:
        actions = read_run(log)
        calls = replayer.calls(log)
        outputs = [replayer.count(text) for text in _answers(log)]
        measures = measure(
            log, actions, calls, output_tokens=outputs, prices=prices, model=model, device=device
        )
        return Measured(path, measures, probe(actions, calls, checks))


def _answers(log: EventLog) -> list[str]:
    """What the model wrote in each turn, its calls spelled out."""
    return [
        "\n".join([log.text(event), *(spell_call(call, _WHOLE_CALL) for call in calls_of(event).values())])
        for event in log.read()
        if event.kind is EventKind.ASSISTANT
    ]


def _replayer(args: argparse.Namespace) -> Replayer:
    tokenizer = RoughTokenizer() if args.tokenizer is None else TokenizersAdapter.from_file(args.tokenizer)
    template = None
    if args.chat_template is not None:
        template = read_template(args.chat_template)
    return Replayer(_policy(args.policy, args.budget), SegmentTokenizer(tokenizer), template)


def _policy(name: str, budget: int | None) -> LayoutPolicy:
    if name == "append_only":
        return AppendOnly(budget)
    if budget is None:
        raise ValueError(f"--policy {name} needs --budget, the tokens of one call")
    return SlidingWindow(budget) if name == "sliding_window" else ThreeZones(budget)


def _model(args: argparse.Namespace) -> DenseModel | None:
    given = (args.parameters, args.layers, args.d_model)
    if all(value is None for value in given):
        return None
    if any(value is None for value in given):
        raise ValueError("--parameters, --layers and --d-model describe one model; give all three or none")
    return DenseModel(int(args.parameters), args.layers, args.d_model)


def _checks(path: Path | None) -> dict[str, Check]:
    if path is None:
        return {}
    try:
        return read_checks(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"--checks {path}: {error}") from None


def _document(result: Measured) -> dict[str, Any]:
    made = asdict(result.measures)
    for name in ("r_assoc", "eps_stale"):
        made[name]["value"] = getattr(result.measures, name).value
    replayed = result.measures.replayed
    made["replayed"] |= {"computed_tokens": replayed.computed_tokens, "hit_rate": replayed.hit_rate}
    if result.measures.served is not None:
        made["served"]["hit_rate"] = result.measures.served.hit_rate
    found = asdict(result.probe)
    for group in ("by_horizon", "by_compactions"):
        shares = getattr(result.probe, group)
        found[group] = {str(key): {**asdict(share), "value": share.value} for key, share in shares.items()}
    return {"path": result.path, **made, "probe": {**found, "difference": result.probe.difference}}


def _tcr_line(outcomes: int, values: dict[int, float | None]) -> str:
    if not outcomes:
        return "\nTCR: no log has an outcome (record.outcome), so task completion is not known"
    shown = ", ".join(f"TCR_{horizon} {value:.2f}" for horizon, value in values.items() if value is not None)
    return f"\n{shown} over {outcomes} outcome(s)"


def _fail(message: str) -> int:
    print(f"deeproot measure: {message}", file=sys.stderr)
    return FAILED
