"""Both clients over a real engine in its thread: nothing lost, nothing reordered, nothing left."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeproot.runtime.client import EngineClient, EngineUnavailable, QueueFull
from deeproot.runtime.engine_setup import LoadedEngine, load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sync_client import SyncClient
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.messages import AddRequest, SamplingParams, TokenOutput

Test = Callable[[EngineClient], Coroutine[Any, Any, None]]


@pytest.fixture
def engine(tiny_model: Path) -> LoadedEngine:
    return load_engine(
        EngineOptions(
            model=str(tiny_model),
            load_format="dummy",
            dtype="float32",
            device="cpu",
            page_size=16,
            kv_cache_memory_bytes=4 * 2**20,
            max_num_seqs=8,
            max_num_batched_tokens=64,
        )
    )


@pytest.fixture
def run(engine: LoadedEngine) -> Iterator[Callable[[Test], list[TokenOutput]]]:
    """Run a test in an event loop with a client, then check that the engine is as it was. Gives the last outputs."""

    def run_test(test: Test) -> list[TokenOutput]:
        finished: list[TokenOutput] = []

        async def main() -> None:
            transport = ThreadTransport(engine.scheduler, engine.info)
            client = EngineClient(transport, 20, lambda last, _: finished.append(last))
            client.start()
            await client.wait_up()
            try:
                await test(client)
                await asyncio.wait_for(client.wait_idle(), 20)
            finally:
                assert client.close()

        asyncio.run(main())
        check_idle(engine.scheduler)
        return finished

    yield run_test
    assert "deeproot-engine" not in {thread.name for thread in threading.enumerate()}


def request(rid: str, num_prompt: int = 20, max_tokens: int = 10, seed: int = 0) -> AddRequest:
    ids = np.arange(num_prompt, dtype=np.int32) + 40
    return AddRequest(rid, ids.tobytes(), SamplingParams(max_tokens=max_tokens, seed=seed))


async def tokens_of(client: EngineClient, *requests: AddRequest) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {request.rid: [] for request in requests}
    ended: set[str] = set()
    async with client.generate(requests) as outputs:
        async for batch in outputs:
            assert batch
            for output in batch:
                assert output.rid not in ended
                if output.token_id is not None:
                    tokens[output.rid].append(output.token_id)
                if output.finish_reason is not None:
                    ended.add(output.rid)
    assert ended == tokens.keys()
    return tokens


def test_every_token_arrives_once_and_in_order(
    run: Callable[[Test], list[TokenOutput]], engine: LoadedEngine
) -> None:
    alone: dict[str, list[int]] = {}
    for seed in range(12):
        engine.scheduler.add(request("alone", 20 + seed, 30, seed))
        outputs: list[TokenOutput] = []
        while engine.scheduler.has_work:
            outputs += engine.scheduler.step()
        alone[str(seed)] = [output.token_id for output in outputs if output.token_id is not None]

    async def test(client: EngineClient) -> None:
        requests = [request(str(seed), 20 + seed, 30, seed) for seed in range(12)]
        one_by_one = asyncio.gather(*(tokens_of(client, one) for one in requests[:6]))
        together = tokens_of(client, *requests[6:])
        results = [*await one_by_one, await together]
        assert {rid: tokens for result in results for rid, tokens in result.items()} == alone

    finished = run(test)
    assert sorted(output.rid for output in finished) == sorted(alone)
    assert all(output.usage is not None and output.usage.output == 30 for output in finished)


def test_a_slow_reader_loses_nothing(run: Callable[[Test], list[TokenOutput]]) -> None:
    async def test(client: EngineClient) -> None:
        count = 0
        async with client.generate([request("a", max_tokens=50)]) as outputs:
            async for batch in outputs:
                count += len(batch)
                await asyncio.sleep(0.02)
        assert count == 50

    run(test)


@pytest.mark.parametrize("how", ["break", "raise", "cancel", "never read"])
def test_leaving_aborts(run: Callable[[Test], list[TokenOutput]], how: str) -> None:
    async def read(client: EngineClient) -> None:
        async with client.generate([request("a", max_tokens=2000), request("b", max_tokens=2000)]) as outputs:
            if how == "never read":
                return
            async for _ in outputs:
                if how == "break":
                    break
                if how == "raise":
                    raise KeyError("the reader's own")

    async def test(client: EngineClient) -> None:
        task = asyncio.create_task(read(client))
        if how == "cancel":
            await asyncio.sleep(0.1)
            assert client.num_inflight == 2
            task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        kinds = {"raise": KeyError, "cancel": asyncio.CancelledError}
        assert type(results[0]) is kinds.get(how, type(None))

    finished = run(test)
    assert [output.finish_reason for output in finished] == ["abort", "abort"]


def test_one_of_several_can_be_aborted(run: Callable[[Test], list[TokenOutput]]) -> None:
    async def test(client: EngineClient) -> None:
        reasons = {}
        async with client.generate([request("a", max_tokens=1500), request("b", max_tokens=40)]) as outputs:
            outputs.abort("a")
            async for batch in outputs:
                reasons.update({output.rid: output.finish_reason for output in batch})
        assert reasons == {"a": "abort", "b": "length"}

    run(test)


def test_more_than_the_queue_holds_is_refused_whole(run: Callable[[Test], list[TokenOutput]]) -> None:
    async def test(client: EngineClient) -> None:
        with pytest.raises(QueueFull, match="20"):
            await tokens_of(client, *(request(str(i)) for i in range(21)))
        assert client.num_inflight == 0
        assert len(await tokens_of(client, *(request(str(i)) for i in range(20)))) == 20

    run(test)


def test_abort_all_ends_every_reader_and_takes_no_more(run: Callable[[Test], list[TokenOutput]]) -> None:
    async def test(client: EngineClient) -> None:
        readers = [
            asyncio.create_task(tokens_of(client, request(str(i), max_tokens=1500))) for i in range(10)
        ]
        await asyncio.sleep(0.1)
        client.abort_all("Closing time.")
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert [str(result) for result in results] == ["Closing time."] * 10
        with pytest.raises(EngineUnavailable, match="Closing time"):
            await tokens_of(client, request("late"))

    finished = run(test)
    assert {output.finish_reason for output in finished} == {"abort"}
    assert len(finished) == 10


def test_a_dead_engine_ends_every_reader(engine: LoadedEngine) -> None:
    async def main() -> None:
        client = EngineClient(ThreadTransport(engine.scheduler, engine.info), 20)
        client.start()
        await client.wait_up()
        reader = asyncio.create_task(tokens_of(client, request("a", max_tokens=1500)))
        await asyncio.sleep(0.1)
        kill(engine)
        with pytest.raises(EngineUnavailable, match="struck by lightning"):
            await reader
        assert client.failure is not None
        with pytest.raises(EngineUnavailable, match="struck by lightning"):
            await tokens_of(client, request("b"))
        await client.wait_idle()
        assert client.close()

    asyncio.run(main())


def kill(engine: LoadedEngine) -> None:
    """Let the engine's own thread fail in its next step, outside of the forward pass."""

    def fail() -> list[TokenOutput]:
        raise RuntimeError("struck by lightning")

    engine.scheduler.step = fail  # type: ignore[method-assign]


def test_the_blocking_client(engine: LoadedEngine) -> None:
    client = SyncClient(ThreadTransport(engine.scheduler, engine.info))
    requests = [request("a"), request("b", max_tokens=3)]
    outputs = list(client.run(requests))
    assert [o.rid for o in outputs if o.finish_reason] == ["b", "a"]
    assert sum(o.token_id is not None for o in outputs) == 13

    # Closing early waits until the engine has ended the request.
    run = client.run([request("c", max_tokens=1900)])
    next(run)
    run.close()
    check_idle(engine.scheduler)

    client.close()
    assert "deeproot-engine" not in {thread.name for thread in threading.enumerate()}


def test_the_blocking_client_in_several_threads(engine: LoadedEngine) -> None:
    client = SyncClient(ThreadTransport(engine.scheduler, engine.info))
    expected = {i: [o.token_id for o in client.run([request(f"first-{i}", seed=i)])] for i in range(6)}
    results: dict[int, list[int | None]] = {}

    def work(i: int) -> None:
        results[i] = [o.token_id for o in client.run([request(f"second-{i}", seed=i)])]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == expected
    client.close()


def test_the_blocking_client_and_a_dead_engine(engine: LoadedEngine) -> None:
    client = SyncClient(ThreadTransport(engine.scheduler, engine.info))
    run = client.run([request("a", max_tokens=1900)])
    next(run)
    kill(engine)
    with pytest.raises(EngineUnavailable, match="struck by lightning"):
        list(run)
    with pytest.raises(EngineUnavailable, match="struck by lightning"):
        list(client.run([request("b")]))
    client.close()


def test_options_are_all_that_an_engine_needs(tiny_model: Path) -> None:
    """Two engines in one process do not know of one another."""
    options = EngineOptions(model=str(tiny_model), load_format="dummy", kv_cache_memory_bytes=2**20)
    first, second = load_engine(options), load_engine(dataclasses.replace(options, page_size=32))
    assert first.scheduler.pool.page_size == 64
    assert second.scheduler.pool.page_size == 32
