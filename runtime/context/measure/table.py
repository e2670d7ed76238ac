"""The measures of one log as a table for people."""

from statistics import median

from deeproot.runtime.context.measure.measures import Measures, Served, Share
from deeproot.runtime.context.measure.probe import Probe

_NONE = "-"


def as_table(path: str, m: Measures, probe: Probe, *, exact: bool) -> str:
    """One measure a line. `exact`: tokens were counted by the model's tokenizer."""
    about = "" if exact else " (about: 4 characters a token)"
    rows = [
        ("turns, actions, compactions", f"{m.turns}, {m.actions}, {m.compactions}"),
        ("outcome", _NONE if m.outcome is None else _outcome(m)),
        ("R_assoc", _share(m.r_assoc)),
        ("eps_stale", _share(m.eps_stale)),
        ("C_r at the end, mean", f"{_number(m.c_r)}, {_number(m.c_r_mean)}"),
        ("U_eff", _number(m.u_eff)),
        ("S_CR(k), k = 0, 1, …", ", ".join(f"{score:.2f}" for score in m.s_cr) or _NONE),
        ("served: hit rate, computed", _served(m.served)),
        (
            "best cache: hit rate, computed",
            f"{_number(m.replayed.hit_rate)}, {m.replayed.computed_tokens} tokens{about}",
        ),
        ("dollars, a turn", f"{m.replayed.dollars:.4f}, {m.replayed.dollars / max(1, m.turns):.4f}"),
        ("prefill floor", _NONE if m.replayed.floor_s is None else f"{m.replayed.floor_s:.3f} s"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [path, *(f"  {name:{width}}  {value}" for name, value in rows)]
    lines += [f"  stale: event {seq}: {why}" for seq, why in m.stale]
    return "\n".join([*lines, *_probe_lines(probe)])


def _probe_lines(probe: Probe) -> list[str]:
    lines = []
    for each in probe.constraints:
        if each.checked is None:
            lines.append(f"  constraint {each.constraint!r}: cannot be checked mechanically")
            continue
        lines.append(
            f"  constraint {each.constraint!r}: {len(each.violations)} violation(s) in {each.actions} action(s)"
        )
        lines += [
            f"    event {v.seq}, turn {v.turn}, after {v.compactions} compaction(s),"
            f" constraint {'in' if v.staged else 'NOT IN'} the prompt: {v.why}"
            for v in each.violations
        ]
    lines += [
        f"  violating actions at turn {name}: {_share(share)}" for name, share in probe.by_horizon.items()
    ]
    lines += [
        f"  violating actions after {k} compaction(s): {_share(share)}"
        for k, share in probe.by_compactions.items()
    ]
    if probe.difference is not None:
        lines.append(f"  difference after the first compaction: {probe.difference:+.3f}")
    return lines


def _outcome(m: Measures) -> str:
    assert m.outcome is not None
    return f"{'passed' if m.outcome.passed else 'failed'} after {m.outcome.turns} turns, by {m.outcome.judge}"


def _served(served: Served | None) -> str:
    if served is None:
        return f"{_NONE} (no record.usage in the log)"
    computed = served.prompt_tokens - served.cached_tokens
    ttft = f", median TTFT {median(served.ttft_s):.3f} s" if served.ttft_s else ""
    return f"{_number(served.hit_rate)}, {computed} tokens in {served.calls} call(s){ttft}"


def _share(share: Share) -> str:
    return _NONE if share.value is None else f"{share.value:.3f} ({share.part} of {share.whole})"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"
