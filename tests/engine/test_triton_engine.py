"""The whole engine on the Triton backend, in the interpreter, says token for token what it says on the torch backend."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.attention_triton import TritonAttention, TritonTuning
from deeproot.engine.kv_pool import FP8, KVPool
from deeproot.engine.kv_scales import measure_kv_scales
from deeproot.engine.loading import LoadedModel, load_model, make_attention
from deeproot.engine.page_ops import PageOps, TorchPageOps
from deeproot.engine.page_ops_triton import TritonPageOps
from deeproot.engine.radix import RadixCache
from deeproot.engine.runner import Runner
from deeproot.kernels.configs import DecodeConfig, PrefillConfig
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.invariants import check
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.scheduler import Scheduler

PAGE, VOCAB = 16, 64
SCHEDULE = SchedulerConfig(
    max_num_seqs=5, max_num_batched_tokens=48, max_model_len=160, policy="fcfs", reserved_output=1
)
TUNING = TritonTuning(
    min_piece=32,
    prefill=PrefillConfig("gather", 32, 32, 4, 2),
    decode=DecodeConfig("gather", 32, 8, 4, 2),
)
CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 256,
}
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 21},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "num_hidden_layers": 2,
        "sliding_window": 37,
        "attn_logit_softcapping": 1.5,
        "query_pre_attn_scalar": 16,
    },
}


@dataclass
class Seen:
    """What the steps of a run have been."""

    prefix_levels: list[int] = field(default_factory=list)
    parts: int = 0
    mixed: int = 0


class Watched(TritonAttention):
    """Notes what its plans came to."""

    seen: Seen

    def plan(self, batch: Any) -> Any:
        key = super().plan(batch)
        step = self._step
        self.seen.prefix_levels.append(step.prefix_levels)
        self.seen.parts += step.extends is not None and step.extends.parts is not None
        self.seen.mixed += step.extends is not None and step.num_decodes > 0
        return key


class CountingCopies(TritonPageOps):
    """Counts copies of parts of pages."""

    def __init__(self) -> None:
        self.copies = 0

    def copy(self, *args: Any) -> None:
        self.copies += 1
        super().copy(*args)


def load(folder: Path, family: str) -> LoadedModel:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **FAMILIES[family]}))
    return load_model(folder, "dummy", "float32")


def make_pool(loaded: LoadedModel, num_pages: int, fp8: bool, ops: PageOps) -> KVPool:
    dtype = FP8 if fp8 else torch.float32
    scales = measure_kv_scales(loaded.model, torch.float32, loaded.device) if fp8 else None
    return KVPool(loaded.config.kv_layout(PAGE, dtype), num_pages, "cpu", scales, ops)


def make_triton(loaded: LoadedModel, pool: KVPool, tuning: TritonTuning) -> Watched:
    config = loaded.config
    limits = BatchLimits(SCHEDULE.max_num_seqs, SCHEDULE.max_num_batched_tokens, SCHEDULE.max_model_len)
    windows = [config.window(layer) for layer in range(config.num_layers)]
    attention = Watched(
        pool,
        config.num_qo_heads,
        limits,
        torch.float32,
        config.attention_scale,
        config.attention_soft_cap,
        windows,
        tuning,
    )
    attention.seen = Seen()
    return attention


def play(loaded: LoadedModel, pool: KVPool, attention: AttentionBackend) -> tuple[list[Any], Scheduler]:
    """Outputs of a script of requests: chunks, decodes, shared and copied prefixes, second turns, preemption."""
    runner = Runner(loaded.model, pool, attention)
    scheduler = Scheduler(SCHEDULE, RadixCache(PAGE), pool, runner)
    rng = np.random.default_rng(5)
    said: dict[str, list[int]] = {}
    outputs: list[Any] = []

    def draw(n: int) -> list[int]:
        return [int(token) for token in rng.integers(0, VOCAB, n)]

    def add(rid: str, ids: list[int], max_tokens: int) -> None:
        said[rid] = list(ids)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0)
        scheduler.add(AddRequest(rid, np.asarray(ids, np.int32).tobytes(), params))

    def run() -> None:
        for _ in range(200):
            if not scheduler.has_work:
                return
            for output in scheduler.step():
                assert output.error is None, output.error
                if output.token_id is not None:
                    said[output.rid].append(output.token_id)
                outputs.append((output.rid, output.token_id, output.finish_reason, output.usage))
            check(scheduler)
        raise AssertionError("the engine does not come to an end")

    common, first = draw(48), draw(20)
    add("first", common + first, 2)
    run()
    add("shares", common + draw(4), 3)
    add("shares too", common + draw(5), 3)
    add("copies", common + first[:11] + draw(3), 3)
    add("second turn", said["first"] + draw(30), 2)
    run()
    # Two that fit until they grow by a page.
    add("grows", draw(77), 9)
    add("grows too", draw(77), 6)
    run()
    return outputs, scheduler


def compare(
    folder: Path, family: str, tuning: TritonTuning, fp8: bool = False
) -> tuple[Seen, CountingCopies]:
    loaded, ops, num_pages = load(folder, family), CountingCopies(), 11
    pool = make_pool(loaded, num_pages, fp8, ops)
    attention = make_triton(loaded, pool, tuning)
    outputs, scheduler = play(loaded, pool, attention)
    torch_pool = make_pool(loaded, num_pages, fp8, TorchPageOps())
    wanted, _ = play(loaded, torch_pool, make_attention(loaded.config, torch_pool, dtype=torch.float32))
    assert outputs == wanted
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.cached > 150
    return attention.seen, ops


@pytest.mark.parametrize(
    ("family", "cascade"),
    [("llama", "always"), ("llama", "never"), ("mistral", "never"), ("gemma2", "always")],
)
def test_token_for_token(tmp_path: Path, family: str, cascade: Any) -> None:
    seen, ops = compare(tmp_path, family, replace(TUNING, cascade=cascade))
    assert ops.copies > 0
    assert seen.mixed > 0
    assert any(seen.prefix_levels) == (cascade == "always")


def test_token_for_token_over_e4m3(tmp_path: Path) -> None:
    seen, _ = compare(tmp_path, "llama", replace(TUNING, cascade="always"), fp8=True)
    assert any(seen.prefix_levels)
