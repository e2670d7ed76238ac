"""Our kernels beside vLLM's and SGLang's, by what their machine code says: writes bench/results/static_kernels.md.

    python -m deeproot.bench.static_kernels [--out FILE]

The peers' figures are kept in static_peers.json: they were read from the cubins of vLLM 0.32.0 (its CPU wheel carries
the Triton sources) and SGLang 0.5.23, compiled by the same Triton 3.9.0, each through its own launcher. Ours are
compiled here. F and rate are bounds that rank code on the same terms, not times.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from deeproot.kernels.check import compiled, run, verdict
from deeproot.kernels.check.cases import Case, cases
from deeproot.kernels.launch import TRITON_VERSION

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]
DIMS, PAGES = (64, 96, 128, 256), (16, 64, 128)


def measured() -> list[tuple[Case, dict[str, Any]]]:
    """Facts of every shipped configuration, from the cache of the compiled checks where it has them."""
    return [(case, compiled.measured(case.build(), run.default_cache())[0]) for case in cases(TRITON_VERSION)]


def best(peers: list[Row], figure: str, **match: Any) -> str:
    """The best figure of the peers' rows that match, with whose it is; a dash where none does."""
    found = [
        row for row in peers if figure in row and all(row[name] == value for name, value in match.items())
    ]
    if not found:
        return "–"
    row = (max if figure == "F" else min)(found, key=lambda row: float(row[figure]))
    page = f", page {row['page']}" if row["page"] else ", no pages"
    spills = f", {row['spills']} spills" if row["spills"] else ""
    return f"{row[figure]} ({row['source'].split()[0]}{page}{spills})"


def attention_table(
    ours: list[tuple[Case, dict[str, Any]]], peers: list[Row], phase: str, figure: str, cache: str
) -> list[str]:
    """One line a head dim and page size: ours, both peers at their best page, and whether ours is ahead of both."""
    lines = [
        f"| head dim | page | ours, plain | {'ours, specialised | ' if phase == 'prefill' and cache == 'bf16' else ''}vLLM | SGLang | gate | ahead |",
    ]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    named = {case.name: (case, facts) for case, facts in ours}
    for dim in DIMS:
        for page in PAGES:
            prefix = "prefill plain" if phase == "prefill" else "decode"
            case, facts = named[f"{prefix} D{dim} page {page} {cache}"]
            value = verdict.figures(case, facts)[figure]
            cells = [str(dim), str(page), str(value)]
            if phase == "prefill" and cache == "bf16":
                special = named.get(f"prefill specialised D{dim} page {page} bf16")
                cells.append(str(verdict.figures(*special)["F"]) if special else "–")
            rivals = [
                best(peers, figure, phase=phase, head_dim=dim, cache=cache, source=source)
                for source in sources(peers)
            ]
            numbers = [float(rival.split()[0]) for rival in rivals if rival != "–"]
            ahead = all(value > n if figure == "F" else value < n for n in numbers)
            gate = case.gate_f if figure == "F" else case.gate_rate
            cells += [*rivals, str(gate or "–"), ("yes" if ahead else "NO") if numbers else "no peer"]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def sources(peers: list[Row]) -> list[str]:
    """The peers' names with versions, in order."""
    return sorted({row["source"] for row in peers}, reverse=True)


def access_table(ours: list[tuple[Case, dict[str, Any]]], peers: list[Row], phase: str) -> list[str]:
    """Widths of loads and stores of the merges or cache writes."""
    lines = [
        "| kernel | configuration | registers | spills | loads 128/64/less | stores 128/64/less |",
        "|---|---|---|---|---|---|",
    ]
    for case, facts in ours:
        if case.phase == phase:
            code = facts["code"]
            loads = f"{code['loads_128'] + code['async_128']}/{code['loads_64']}/{code['loads_narrow'] + code['async_narrow']}"
            stores = f"{code['stores_128']}/{code['stores_64']}/{code['stores_narrow']}"
            lines.append(
                f"| **ours** | {case.name} | {facts['registers']} | {code['spills']} | {loads} | {stores} |"
            )
    lines += [
        f"| {row['source']} {row['kernel']} | {row['configuration']} | {row['registers']} | {row['spills']} | {row['loads']} | {row['stores']} |"
        for row in peers
        if row["phase"] == phase
    ]
    return lines


INTRO = """# Kernels, read from the machine code

No GPU was used: nothing here is a time. Written by `python -m deeproot.bench.static_kernels`; Triton {version}, sm_90.
Peers: {peers}, through their own launchers on the same compiler; their rows are kept in `bench/static_peers.json`, the
best of each over the page sizes that it was compiled with (vLLM 16, SGLang 1 and 16). "no pages" is SGLang's dense
prefill, which reads contiguous K and V and serves no cache. Both engines put CUDA kernels (FlashAttention) before these
on Hopper, so this is their fallback, not their best.

**F**, higher is better: matrix FLOP that the algorithm needs for each warp instruction of the hot loop. A scheduler of an
H100 issues one instruction and 1,024 bf16 FLOP a cycle, so from F 1,024 on the loop is no longer bound by issue.
**rate**, lower is better: instructions a cycle that each scheduler must issue for a decode loop to take K and V as fast as
3.35 TB/s gives them; over 1 the memory's speed is out of reach. Head dim 96 is computed in 128 columns: padding does not
count as needed. fp8 queries are kept as two e4m3 terms; the second product does not count as needed either.
"""


def report() -> str:
    """The whole document."""
    peers: list[Row] = json.loads((HERE / "static_peers.json").read_text())["rows"]
    ours = measured()
    parts = [INTRO.format(version=".".join(map(str, TRITON_VERSION)), peers=" and ".join(sources(peers)))]
    for title, phase, figure, cache in (
        ("Prefill, bf16: F", "prefill", "F", "bf16"),
        ("Prefill over an fp8 cache: F", "prefill", "F", "fp8"),
        ("Decode, bf16: rate", "decode", "rate", "bf16"),
        ("Decode over an fp8 cache: rate", "decode", "rate", "fp8"),
    ):
        parts.append("\n".join([f"## {title}\n", *attention_table(ours, peers, phase, figure, cache)]))
    parts.append("\n".join(["## Merge of partial states\n", *access_table(ours, peers, "merge")]))
    parts.append("\n".join(["## Cache write\n", *access_table(ours, peers, "write")]))
    table = [run.HEADER, "|" + "---|" * (run.HEADER.count("|") - 1)]
    table += [run.row(case, facts, "") for case, facts in ours]
    parts.append("\n".join(["## Every shipped configuration, Triton 3.9\n", *table]))
    old: dict[str, dict[str, Any]] = json.loads(run.BUDGETS.read_text())["3.6"]
    lines = ["| kernel | registers | shared KiB | F | rate |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {kept['registers']} | {kept['shared'] / 1024:.1f} | {kept.get('F', '')} | {kept.get('rate', '')} |"
        for name, kept in old.items()
    ]
    parts.append(
        "\n".join(
            [
                "## The same on Triton 3.6\n\nNone spills. Figures as committed in `kernels/budgets.json`.\n",
                *lines,
            ]
        )
    )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "static_kernels.md")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report())


if __name__ == "__main__":
    main()
