"""Our models of other engines' caches beside independent ones: `kvlint` and `kvcache-simulator` from PyPI.

    python -m deeproot.bench.cachesim.peers --packages FOLDER

FOLDER: where both are installed (`pip install --target FOLDER --no-deps kvlint kvcache-simulator`, and pydantic).

- `kvlint` has a model of vLLM's pages and one of SGLang's tree. It counts a whole prompt that is cached as cached, where
  engines compute its last token again: prompts are compared with one token more, which no other prompt has.
- `kvcache-simulator` has one of block ids, without and with a limit. It evicts the least recently used leaf of a tree of
  blocks, as vLLM's order of return comes to. Its own count of the second half of a trace is compared.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.made_runs import AgentShape, made_runs
from deeproot.bench.cachesim.mooncake import BLOCK, BlockRequest, calls_of_blocks, conversation
from deeproot.bench.cachesim.replaying import room_for_all
from deeproot.bench.cachesim.sglang_tree import SglangTree
from deeproot.bench.cachesim.vllm_pages import VllmPages
from deeproot.bench.cachesim.workloads import named_workload
from deeproot.bench.report.text import text_table

_UNIQUE_FROM = 2**29


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--packages", type=Path, required=True, help="folder that holds kvlint and kvcache_sim"
    )
    parser.add_argument("--requests", type=int, default=2000, help="of the Mooncake trace")
    parser.add_argument("--sessions", type=int, default=5, help="of made agents and of airline runs")
    args = parser.parse_args(argv)
    sys.path.append(str(args.packages))
    workloads = {
        f"airline, {args.sessions} runs": named_workload("airline", Renderer(), 1, args.sessions),
        f"agents, {args.sessions} sessions": made_runs(AgentShape(sessions=args.sessions), 1),
    }
    rows = [row for name, calls in workloads.items() for row in _kvlint(name, calls)]
    rows += _kvcache_simulator(conversation(args.requests))
    heads = ("workload", "model", "memory", "ours, tokens", "theirs, tokens", "calls that differ")
    print(text_table(heads, rows))
    return 0


def _kvlint(name: str, calls: Sequence[Call]) -> list[tuple[str, ...]]:
    """Prompts alone, since it knows no answers, and without limit: its eviction is another one by its own account."""
    vllm = importlib.import_module("kvlint.sim.vllm_blocks")
    sglang = importlib.import_module("kvlint.sim.sglang_radix")
    asked = [
        Call(call.session, call.time_s, np.append(call.prompt, np.int32(_UNIQUE_FROM + i)))
        for i, call in enumerate(calls)
    ]
    room = room_for_all(asked)
    pairs: list[tuple[str, Any, Any]] = [
        ("vLLM, kvlint", VllmPages(room // 16, 16), vllm.VLLMBlockSimulator(16)),
        ("SGLang, kvlint", SglangTree(room), sglang.SGLangRadixSimulator()),
        ("SGLang, pages of 16, kvlint", SglangTree(room, 16), sglang.SGLangRadixSimulator(page_size=16)),
    ]
    rows: list[tuple[str, ...]] = []
    for model, ours, theirs in pairs:
        mine = [ours.serve(call).cached for call in asked]
        other = [
            theirs.feed_tokens(str(i), call.prompt.tolist()).cached_tokens for i, call in enumerate(asked)
        ]
        differ = sum(a != b for a, b in zip(mine, other, strict=True))
        rows.append((name, model, "no limit", f"{sum(mine):,}", f"{sum(other):,}", str(differ)))
    return rows


def _kvcache_simulator(requests: Sequence[BlockRequest]) -> list[tuple[str, ...]]:
    """Whole blocks: a shorter last block is left out, since vLLM has no hash for it."""
    traces = importlib.import_module("kvcache_sim.trace")
    plans = importlib.import_module("kvcache_sim.plan")
    policies = importlib.import_module("kvcache_sim.policies")
    whole = [
        BlockRequest(r.time_s, r.hash_ids[: r.input_length // BLOCK], r.input_length // BLOCK * BLOCK, 0)
        for r in requests
        if r.input_length >= BLOCK
    ]
    # A token more, which no other prompt has, so that a last whole block can be hit: to the simulator a block of its own.
    lines = [
        json.dumps(
            {
                "hash_ids": [*r.hash_ids, _UNIQUE_FROM + i],
                "input_length": r.input_length + 1,
                "block_size": BLOCK,
                "block_tokens": [BLOCK] * len(r.hash_ids) + [1],
            }
        )
        for i, r in enumerate(whole)
    ]
    plan = plans.build_execution_plan(traces.parse_trace_lines(lines))
    half = plan.warmup_requests
    calls = [
        Call(c.session, c.time_s, np.append(c.prompt, np.int32(_UNIQUE_FROM + i)))
        for i, c in enumerate(calls_of_blocks(whole))
    ]
    rows: list[tuple[str, ...]] = []
    for capacity in (None, plan.unique_blocks // 2, plan.unique_blocks // 4, plan.unique_blocks // 8):
        pages = VllmPages(room_for_all(calls) // BLOCK if capacity is None else capacity, BLOCK)
        mine = [pages.serve(call).cached for call in calls][half:]
        found = (
            policies.simulate_ceiling(plan)
            if capacity is None
            else policies.simulate_policy(plan, "lru", capacity)
        )
        memory = "no limit" if capacity is None else f"{capacity:,} blocks"
        rows.append(
            (
                f"Mooncake, {len(whole)} requests, second half",
                "vLLM, kvcache-simulator",
                memory,
                f"{sum(mine):,}",
                f"{found.hitTokens:,}",
                "not given by it",
            )
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
