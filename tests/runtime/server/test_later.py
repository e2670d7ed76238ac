"""Work that is put off: all of it is done, in order, and not while somebody waits for the engine."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.runtime.client import EngineClient
from deeproot.runtime.engine_setup import LoadedEngine, load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.server import later
from deeproot.runtime.server.later import LaterWork

from ..test_client import request


@pytest.fixture
def engine(tiny_model: Path) -> LoadedEngine:
    options = EngineOptions(
        model=str(tiny_model),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=16,
        kv_cache_memory_bytes=4 * 2**20,
    )
    return load_engine(options)


@pytest.fixture
def client(engine: LoadedEngine) -> Iterator[EngineClient]:
    client = EngineClient(ThreadTransport(engine.scheduler, engine.info), 20)
    yield client
    assert client.close()


def test_work_waits_for_requests_but_not_for_ever(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "_QUIET_S", 0.0)
    done: list[str] = []

    async def main() -> None:
        client.start()
        await client.wait_up()
        work = LaterWork(client)
        async with client.generate([request("a", max_tokens=3)]) as outputs:
            work.put(lambda: done.append(f"{client.num_inflight} in flight"))
            async for _ in outputs:
                if client.num_inflight:
                    assert not done
        while not done:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(later, "_LONGEST_S", 0.0)
        async with client.generate([request("b", max_tokens=200)]):
            work.put(lambda: done.append("at last"))
            while len(done) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert done == ["0 in flight", "at last"]


def test_settling_does_all_of_it_now_and_once(client: EngineClient) -> None:
    done: list[int] = []

    def fail() -> None:
        raise ValueError("on purpose")

    async def main() -> None:
        client.start()
        await client.wait_up()
        work = LaterWork(client)
        for i in range(20):
            work.put(lambda i=i: done.append(i))  # type: ignore[misc]
            work.put(fail)
        await work.settle()
        assert done == list(range(20))
        await asyncio.sleep(2 * later._QUIET_S)

    asyncio.run(main())
    assert done == list(range(20))


def test_work_is_done_in_another_thread_one_at_a_time(client: EngineClient) -> None:
    inside, most, threads = 0, 0, set()

    def count() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threads.add(threading.current_thread())
        time.sleep(0.001)
        inside -= 1

    async def main() -> None:
        client.start()
        await client.wait_up()
        work = LaterWork(client)
        for _ in range(10):
            work.put(count)
        await asyncio.gather(work.settle(), work.settle())

    asyncio.run(main())
    assert most == 1
    assert threading.main_thread() not in threads
