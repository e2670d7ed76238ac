"""What becomes of stale observations: always evicted, always only spoken of at the tail, or by the price that the engine tells.

    python -m deeproot.bench.priced_edits

An agent reads and edits real files; what it read and then changed no longer holds. The same agent's log goes through the
product's working set, invalidation and prefix tree three times. Before each call the priced run asks the tree, as
`/v1/cache/price` does, how much of each possible prompt is cached. In the second table every call comes to a cache that
has lost the session's tokens but for the first ones, as after a long pause on a busy server. No model runs: which tokens
would have to be computed does not depend on one. Dollars are those of a published price list (see `Prices`).
"""

import argparse
import random
import string
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.bench.report.text import text_table
from deeproot.bench.working_set import byte_tokenizer
from deeproot.runtime.cache_price import EngineOracle, Probed
from deeproot.runtime.context import record
from deeproot.runtime.context.cost_oracle import CostOracle, EditCost
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import file_entity
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.price import Stakes
from deeproot.runtime.context.invalidation.settle import Settler
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.prefix_cost import PrefixCost, Prices
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenIds, TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Probing:
    """A tree that is asked as the engine is."""

    def __init__(self, tree: OwnTree) -> None:
        self._tree = tree

    def probe(self, prompts: Sequence[TokenIds]) -> Probed:
        cached = tuple(self._tree.cache.probe(ids.tobytes()) for ids in prompts)
        return Probed(tuple(map(len, prompts)), cached, None)


@dataclass(frozen=True, slots=True)
class Fixed:
    """An oracle that does not look: what follows the first change costs `share` of itself."""

    share: float

    def price(self, old_tokens: TokenIds, new_tokens: TokenIds) -> EditCost:
        size = min(old_tokens.size, new_tokens.size)
        changed = bool((old_tokens[:size] != new_tokens[:size]).any()) or new_tokens.size < old_tokens.size
        return EditCost(int(new_tokens.size * self.share) if changed else 0, None, None)


ALWAYS_EVICT, NEVER_EVICT = Fixed(0.0), Fixed(1e6)


def run(
    seed: int,
    turns: int,
    lost: float,
    oracle_of: Callable[[OwnTree], CostOracle],
    prices: Prices,
) -> PrefixCost:
    """One agent's run. lost: share of the session's newest tokens that the cache loses between two calls."""
    rng = random.Random(seed)
    tree = OwnTree(num_pages=4096, page_size=16)
    oracle = oracle_of(tree)
    working_set = WorkingSet(
        policy=AppendOnly(),
        tokenizer=SegmentTokenizer(TokenizersAdapter(byte_tokenizer())),
        template=ChatTemplate(CHATML),
    )
    total = cached = 0
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog.memory(clock=lambda: 1_700_000_000_000_000_000)
        record.policy(log, "You repair C. " * 20)
        record.user(log, "Make the tests pass.")
        agent = _Agent(rng, Path(folder), log, Invalidator(log))
        for left in range(turns, 0, -1):
            settler = Settler(
                working_set, oracle=oracle, prices=prices, stakes=Stakes(turns_left=left), root=folder
            )
            ids = settler.before_call(log, agent.invalidator).context.token_ids
            call = Call("agent", float(turns - left), ids)
            served = tree.serve(call)
            total, cached = total + int(ids.size), cached + served.cached
            tree.pool.free(tree.cache.evict(int(tree.cache.num_pages * lost)))
            agent.act()
    return PrefixCost(total, total - cached, cached)


class _Agent:
    """Reads files, and now and then edits one that it has read."""

    def __init__(self, rng: random.Random, root: Path, log: EventLog, invalidator: Invalidator) -> None:
        self.invalidator = invalidator
        self._rng, self._root, self._log = rng, root, log
        self._read: list[str] = []

    def act(self) -> None:
        call_id = f"c{len(self._log)}"
        edits = bool(self._read) and self._rng.random() < 0.35
        function = {"name": "edit" if edits else "show", "arguments": "{}"}
        event = record.assistant(
            self._log, "", tool_calls=[{"id": call_id, "type": "function", "function": function}]
        )
        if edits:
            path = self._root / self._rng.choice(self._read)
            path.write_text(self._text())
            self.invalidator.wrote([path], event)
            record.tool_result(self._log, call_id, "written", name="edit", exit_code=0)
            return
        path = self._root / f"f{self._rng.randrange(12)}.c"
        if not path.exists():
            path.write_text(self._text())
        reading = self.invalidator.reading([file_entity(path)])
        seq = record.tool_result(self._log, call_id, path.read_text(), name="show", exit_code=0)
        self.invalidator.bind(seq, reading)
        self._read.append(path.name)

    def _text(self) -> str:
        lines = int(min(60, self._rng.lognormvariate(2.5, 0.8))) + 1
        return "\n".join("".join(self._rng.choices(string.ascii_lowercase, k=24)) for _ in range(lines))


def arms() -> dict[str, Callable[[OwnTree], CostOracle]]:
    return {
        "always evicted": lambda _: ALWAYS_EVICT,
        "always at the tail": lambda _: NEVER_EVICT,
        "by the engine's price": lambda tree: EngineOracle(Probing(tree)),
    }


def compare(seeds: Sequence[int], turns: int, lost: float, prices: Prices) -> dict[str, list[PrefixCost]]:
    """The runs of each arm, one a seed."""
    return {
        name: [run(seed, turns, lost, oracle_of, prices) for seed in seeds]
        for name, oracle_of in arms().items()
    }


def table(found: dict[str, list[PrefixCost]], prices: Prices) -> str:
    """A Markdown table, and in how many runs the priced choice was no dearer than the better of the others."""
    rows = []
    for name, runs in found.items():
        dollars = sum(one.dollars(prices) for one in runs)
        total, computed = (sum(getattr(one, field) for one in runs) for field in ("total_tokens", "computed"))
        rows.append((name, f"{total:,}", f"{computed:,}", f"{dollars:.4f}"))
    made = text_table(("", "prompt tokens", "computed", "dollars"), rows)
    worse = worse_by(found, prices)
    return f"{made}\n\nPriced against the better of the other two, run by run: {_said(worse)}."


def worse_by(found: dict[str, list[PrefixCost]], prices: Prices) -> list[float]:
    """For each run, by what share of its dollars the priced choice was dearer than the better one; below 0: cheaper."""
    evict, tail, priced = (np.array([one.dollars(prices) for one in runs]) for runs in found.values())
    share: list[float] = (priced / np.minimum(evict, tail) - 1).tolist()
    return share


def _said(worse: Sequence[float]) -> str:
    dearer = sum(share > 1e-9 for share in worse)
    return f"dearer in {dearer} of {len(worse)}, at most {max(worse):+.1%}, at best {min(worse):+.1%}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args(argv)
    prices = Prices()
    for title, lost in (
        ("The cache keeps the session", 0.0),
        ("The cache loses 0.9 of it after each call", 0.9),
    ):
        found = compare(range(args.seeds), args.turns, lost, prices)
        print(f"## {title}\n\n{table(found, prices)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
