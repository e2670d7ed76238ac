"""The price oracle over a live engine, as compaction, invalidation and the agent use it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from deeproot.runtime.agent.server_prices import ServerPrices
from deeproot.runtime.cache_client import CacheClient
from deeproot.runtime.cache_price import EngineOracle
from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.compactor import Compactor, Status
from deeproot.runtime.context.cost_oracle import TokenCountOracle
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.price import Invalid, Stakes, Treatment, choose
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.prefix_cost import Prices, common_prefix
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import SamplingOptions

from ..tiny_model import CHAT_TEMPLATE
from .harness import RunningServer

ONE = SamplingOptions(max_tokens=1)


def test_what_a_compaction_recomputes_is_what_the_engine_then_computes(
    tiny_options: EngineOptions, tiny_model: Path
) -> None:
    tokenizer = TokenizersAdapter.from_file(tiny_model / "tokenizer.json")
    working_set = WorkingSet(
        policy=AppendOnly(), tokenizer=SegmentTokenizer(tokenizer), template=ChatTemplate(CHAT_TEMPLATE)
    )
    log = EventLog.memory(clock=lambda: 1_700_000_000_000_000_000)
    record.policy(log, "You repair C.")
    for i in range(8):
        record.user(log, f"Part {i}: " + "look at it. " * 4)
        record.assistant(log, "It is done. " * 4)
    with LLM(tiny_options) as llm:
        old = working_set.assemble(log).token_ids
        llm.generate([old.tolist()], ONE)
        budget = int(old.size * 1.05)
        compactor = Compactor(working_set, budget=budget, oracle=EngineOracle(llm))
        outcome = asyncio.run(compactor.make_room(log))
        assert outcome.status is Status.COMPACTED
        new = working_set.assemble(log).token_ids
        assert outcome.cost is not None
        shared = common_prefix(old, new)
        assert outcome.cost.tokens_recomputed == new.size - shared > 0
        (done,) = llm.generate([new.tolist()], ONE)
        assert done.usage.computed == outcome.cost.tokens_recomputed
        assert EngineOracle(llm).price(old, new).tokens_recomputed == 1, "now it is there"


def test_stale_text_is_evicted_once_what_follows_it_is_cold_anyway(tiny_options: EngineOptions) -> None:
    prompt = np.arange(640, dtype=np.int32) % 250
    tail = np.arange(12, dtype=np.int32)
    empty = np.empty(0, dtype=np.int32)
    stale = [Invalid(7, ((100, 160),), Treatment.EVICT, empty, tail)]
    with LLM(tiny_options) as llm:

        def chosen() -> Treatment:
            oracle = EngineOracle(llm)
            made = choose(prompt, stale, oracle=oracle, prices=Prices(), stakes=Stakes(turns_left=2))
            return made.treatments[7]

        llm.generate([prompt.tolist()], ONE)
        assert chosen() is Treatment.TAIL, "eviction would compute all behind it anew"
        scheduler = llm._engine.scheduler
        scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages - 96 // 16))
        assert llm.probe([prompt]).cached_tokens == (96,)
        assert chosen() is Treatment.EVICT


def test_an_agent_asks_its_server_and_goes_on_without(server: RunningServer) -> None:
    ids = np.arange(200, dtype=np.int32)
    notes: list[str] = []
    with CacheClient(f"{server.url}/v1") as cache:
        asked = ServerPrices(cache, TokenCountOracle(), notes.append)
        assert asked.price(ids, ids).tokens_recomputed == 200, "counting would say 0"
        cache.post("/v1/completions", {"prompt": ids[:150].tolist(), "max_tokens": 1})
        assert asked.price(ids, ids).tokens_recomputed == 50
    assert notes == []
    with CacheClient("http://127.0.0.1:9", timeout_s=2) as nobody:
        asked = ServerPrices(nobody, TokenCountOracle(), notes.append)
        assert [asked.price(ids, ids[:9]).tokens_recomputed for _ in range(2)] == [0, 0]
    assert len(notes) == 1
    assert "--server-prices" in notes[0]
    server.wait_idle()


@pytest.mark.parametrize("size", [1, 16, 17])
def test_the_oracle_prices_what_is_cached_and_not_what_was_sent(
    tiny_options: EngineOptions, size: int
) -> None:
    with LLM(tiny_options) as llm:
        ids = np.full(size, 5, dtype=np.int32)
        assert EngineOracle(llm).price(ids, ids).tokens_recomputed == size
        llm.generate([ids.tolist()], ONE)
        assert EngineOracle(llm).price(np.array([9], dtype=np.int32), ids).tokens_recomputed == 1
