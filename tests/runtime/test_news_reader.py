"""A socket that an event loop reads: all of it, in order, and none of it after it was let go."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop
import zmq

from deeproot.runtime.news_reader import NewsReader

Socket = zmq.Socket[bytes]
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_in(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(work, 60))

    return run_in


@pytest.fixture
def sockets() -> Iterator[tuple[Socket, Socket]]:
    context = zmq.Context()
    sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    receiver.bind("inproc://news")
    sender.connect("inproc://news")
    yield sender, receiver
    context.destroy(linger=0)


async def until(happens: Callable[[], bool]) -> None:
    while not happens():
        await asyncio.sleep(0.001)


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_everything_comes_once_and_in_order(run: Run, sockets: tuple[Socket, Socket]) -> None:
    """Also what was there before, what comes in a burst, and what comes one by one from another thread."""
    sender, receiver = sockets
    got: list[bytes] = []

    def send(first: int) -> None:
        for i in range(first, first + 500):
            sender.send(b"%d" % i)

    async def main() -> None:
        send(0)
        reader = NewsReader(asyncio.get_running_loop(), receiver, got.append)
        reader.start()
        await until(lambda: len(got) == 500)
        await asyncio.to_thread(send, 500)
        await until(lambda: len(got) == 1000)
        for i in range(1000, 1020):
            sender.send(b"%d" % i)
            await until(lambda count=i + 1: len(got) == count)
        reader.end()

    run(main())
    assert got == [b"%d" % i for i in range(1020)]


def test_a_message_that_cannot_be_taken_does_not_hold_up_the_next(
    run: Run, sockets: tuple[Socket, Socket], caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = sockets
    got: list[int] = []

    async def main() -> None:
        reader = NewsReader(asyncio.get_running_loop(), receiver, lambda data: got.append(int(data)))
        reader.start()
        for data in (b"1", b"not a number", b"3"):
            sender.send(data)
        await until(lambda: len(got) == 2)
        reader.end()

    run(main())
    assert got == [1, 3]
    assert "could not be taken" in caplog.text


def test_after_its_release_the_socket_is_another_threads(run: Run, sockets: tuple[Socket, Socket]) -> None:
    sender, receiver = sockets
    got: list[bytes] = []
    rest: list[bytes] = []

    async def main() -> None:
        reader = NewsReader(asyncio.get_running_loop(), receiver, got.append)
        reader.start()
        sender.send(b"read in the loop")
        await until(lambda: bool(got))
        await asyncio.to_thread(reader.release)
        sender.send(b"left")
        await asyncio.sleep(0.05)
        rest.append(await asyncio.to_thread(receiver.recv))

    run(main())
    assert got == [b"read in the loop"]
    assert rest == [b"left"]


def test_one_that_has_ended_does_not_begin(run: Run, sockets: tuple[Socket, Socket]) -> None:
    sender, receiver = sockets
    got: list[bytes] = []

    async def main() -> None:
        reader = NewsReader(asyncio.get_running_loop(), receiver, got.append)
        reader.start()
        reader.end()
        sender.send(b"too late")
        await asyncio.sleep(0.05)

    run(main())
    assert got == []
    assert receiver.recv() == b"too late"


def test_a_loop_that_is_gone_has_let_go(sockets: tuple[Socket, Socket]) -> None:
    _, receiver = sockets
    loop = asyncio.new_event_loop()
    reader = NewsReader(loop, receiver, lambda _: None)
    waiting = threading.Thread(target=reader.release)  # asked of a loop that will never run
    waiting.start()
    loop.close()
    waiting.join(60)
    assert not waiting.is_alive()
    reader.start()
    reader.release()
