"""Compiles every shipped kernel configuration for sm_90 without a GPU, checks its machine code, prints a table.

Exit status 1 if anything is wrong. What has not changed is not compiled again.
"""

import argparse
import json
import os
import re
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from deeproot.kernels.check import cases as shipped
from deeproot.kernels.check import compiled, verdict
from deeproot.kernels.home import home_folder
from deeproot.kernels.launch import TRITON_VERSION

BUDGETS = Path(__file__).resolve().parent.parent / "budgets.json"
HEADER = "| kernel | warps | regs | spills | shared KiB | matrix | loads TMA/128/less | stores 128/less | loop | F | rate | gate | |"


def default_cache() -> Path:
    """The folder of what is compiled already, under the project's home for downloads and caches."""
    return home_folder() / "kernel_check"


def main(argv: list[str] | None = None) -> int:
    """Run the checks; the exit status."""
    parser = argparse.ArgumentParser(prog="kernel_check", description=__doc__)
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="folder of what is compiled already"
    )
    parser.add_argument(
        "--only", default="", help="a regular expression: check only the cases whose name holds it"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--update", action="store_true", help="write the figures of this run to budgets.json")
    parser.add_argument("--budgets", type=Path, default=BUDGETS)
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    options = parser.parse_args(argv)
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        parser.error("TRITON_INTERPRET is set: Triton would interpret the kernels instead of compiling them")
    names = [case.name for case in shipped.cases(TRITON_VERSION) if re.search(options.only, case.name)]
    if options.list:
        print("\n".join(names))
        return 0
    if not names:
        parser.error(f"--only {options.only!r} matches no case")
    started = time.monotonic()
    results = _measure_all(names, options.cache, options.jobs)
    version = ".".join(str(part) for part in TRITON_VERSION)
    budgets: dict[str, dict[str, Any]] = (
        json.loads(options.budgets.read_text()) if options.budgets.is_file() else {}
    )
    if options.update:
        _update(budgets, version, results, whole=not options.only)
        options.budgets.write_text(json.dumps(budgets, indent=1, sort_keys=True) + "\n")
    kept = budgets.get(version, {})
    bad = _report(results, kept, gated=TRITON_VERSION >= (3, 9))
    if not options.only and (stale := sorted(set(kept) - {case.name for case, _, _ in results})):
        bad.append(f"budgets.json names cases that do not exist: {stale}")
        print(bad[-1])
    compiled_now = sum(fresh for _, _, fresh in results)
    print(
        f"\nTriton {version}: {len(results)} configurations, {compiled_now} compiled now, {time.monotonic() - started:.0f} s"
    )
    print(f"{len(bad)} wrong" if bad else "all within budget")
    return 1 if bad else 0


Result = tuple[shipped.Case, dict[str, Any], bool]


def _measure_one(cache: Path, name: str) -> tuple[dict[str, Any], bool]:
    case = next(case for case in shipped.cases(TRITON_VERSION) if case.name == name)
    try:
        return compiled.measured(case.build(), cache)
    except Exception as error:  # a compiler's failure is a result: the table names it and the run goes on
        return {"error": f"{type(error).__name__}: {str(error).strip()[-300:]}"}, True


def _measure_all(names: list[str], cache: Path, jobs: int) -> list[Result]:
    by_name = {case.name: case for case in shipped.cases(TRITON_VERSION)}
    hits: dict[str, tuple[dict[str, Any], bool]] = {}
    for name in names:
        path = compiled.path_of(by_name[name].build(), cache)
        if path.is_file():
            hits[name] = (json.loads(path.read_text()), False)
    rest = [name for name in names if name not in hits]
    if rest and jobs > 1:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            hits |= dict(zip(rest, pool.map(partial(_measure_one, cache), rest), strict=True))
    else:
        hits |= {name: _measure_one(cache, name) for name in rest}
    return [(by_name[name], *hits[name]) for name in names]


def _update(budgets: dict[str, dict[str, Any]], version: str, results: list[Result], *, whole: bool) -> None:
    entries = {} if whole else budgets.get(version, {})
    for case, facts, _ in results:
        if "error" not in facts:
            now = verdict.budget(case, facts)
            short = verdict.missed(case, now) if TRITON_VERSION >= (3, 9) else ""
            entries[case.name] = now | ({"missed": short} if short else {})
    budgets[version] = entries


def _report(results: list[Result], kept: dict[str, Any], *, gated: bool) -> list[str]:
    """Print the table and what is wrong; the names of the cases that are wrong."""
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    bad = []
    for case, facts, _ in results:
        if "error" in facts:
            wrong = [f"does not compile: {facts['error']}"]
            print(f"| {case.name} " + "| " * (HEADER.count("|") - 3) + "| WRONG |")
        else:
            wrong = verdict.problems(case, facts, kept.get(case.name), gated=gated)
            under = verdict.missed(case, verdict.budget(case, facts))
            print(row(case, facts, "WRONG" if wrong else "ok, under the gate" if under else "ok"))
        bad.extend([case.name] if wrong else [])
        for line in wrong:
            print(f"  {case.name}: {line}")
    return bad


def row(case: shipped.Case, facts: dict[str, Any], word: str) -> str:
    """One line of the table."""
    code, loop = facts["code"], verdict.hot_loop(case, facts)
    figures = verdict.figures(case, facts)
    matrix = " ".join(f"{name.upper()} {code[name]}" for name in ("hgmma", "qgmma", "hmma") if code[name])
    wide = code["async_128"] + code["loads_128"]
    narrow = code["async_narrow"] + code["loads_64"] + code["loads_narrow"]
    gate = (
        f"F {case.gate_f}"
        if case.gate_f is not None
        else f"rate {case.gate_rate}"
        if case.gate_rate is not None
        else ""
    )
    cells = (
        case.name, facts["warps"], facts["registers"], code["spills"], round(facts["shared"] / 1024, 1), matrix,
        f"{code['tma_loads']}/{wide}/{narrow}", f"{code['stores_128']}/{code['stores_64'] + code['stores_narrow']}",
        loop["instructions"] if loop else "", figures.get("F", ""), figures.get("rate", ""), gate, word,
    )  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
