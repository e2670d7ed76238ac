"""A run that is killed goes on as if it had not been: at every record of its log, within records, and with SIGKILL."""

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deeproot.runtime.agent.turn_log import read_progress
from deeproot.runtime.context.event_log import EventLog

from .killing import (
    SCRIPT,
    Whole,
    files_of,
    in_flight,
    killed_at,
    make_workspace,
    resumed,
    script_cut,
    uninterrupted,
    with_unknown,
)
from .processes import Sessions
from .scripted import Reply, ScriptedServer, scripted_server

CHUNKS, TORN, AT_RANDOM = 8, 16, 10
IN_REPLIES = [
    (0, None),
    (0, 2),
    (1, 1),
    (1, 2),
    (1, 3),
    (2, None),
    (2, 1),
    (3, 1),
    (3, 2),
    (3, 3),
    (4, 1),
    (5, None),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The run that nobody stops."""
    return uninterrupted(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> "Cut":
    return Cut(tmp_path_factory.mktemp("cut"))


class Cut:
    """Runs whose model was cut off in a reply, behind a call that had begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[int, int], Whole] = {}

    def run(self, turn: int, calls: int) -> Whole:
        if (turn, calls) not in self._known:
            folder = self._folder / f"{turn}-{calls}"
            folder.mkdir()
            self._known[turn, calls] = uninterrupted(folder, script_cut(turn, calls))
        return self._known[turn, calls]


def check_resume(path: Path, server: ScriptedServer, whole: Whole, cut: Cut) -> None:
    """Go on with a killed run, and hold its next request against that of the run that nobody stopped."""
    commands, calls = in_flight(path)
    bodies = resumed(path, server)
    turn = sum(message["role"] == "assistant" for message in json.loads(bodies[0])["messages"])
    expected = whole if calls is None else cut.run(turn - 1, calls)
    files = files_of(path.parent / "workspace")
    if commands:
        assert json.loads(bodies[0]) == with_unknown(expected.bodies[turn], commands)
        files.setdefault("ran.txt", "x\n")  # it may not have run; the model was told that nobody knows
    else:
        assert bodies[0] == expected.bodies[turn]
    assert files == expected.files, "something was done twice, or not at all"


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_at_every_record(chunk: int, before: bool, whole: Whole, cut: Cut, tmp_path: Path) -> None:
    with scripted_server(*SCRIPT) as server:
        # the last record says that the run has ended
        for commit in range(1 + chunk, whole.commits + before, CHUNKS):
            folder = tmp_path / str(commit)
            folder.mkdir()
            check_resume(killed_at(folder, server, commit, before=before), server, whole, cut)


@pytest.mark.parametrize("chunk", range(4))
def test_a_record_that_was_written_in_part(chunk: int, whole: Whole, cut: Cut, tmp_path: Path) -> None:
    chosen = random.Random(chunk)
    with scripted_server(*SCRIPT) as server:
        for number in range(TORN // 4):
            folder = tmp_path / str(number)
            folder.mkdir()
            path = killed_at(folder, server, chosen.randint(1, whole.commits), torn=chosen)
            check_resume(path, server, whole, cut)


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as sessions:
        yield sessions


@pytest.mark.parametrize(("turn", "call"), IN_REPLIES)
def test_sigkill_in_a_reply(
    turn: int, call: int | None, sessions: Sessions, whole: Whole, cut: Cut, tmp_path: Path
) -> None:
    """The model's server kills the agent behind a call (None: before it says anything), and its connection with it."""

    def kill(number: int = 0) -> None:
        if call is None or number + 1 == call:
            sessions.kill()
            time.sleep(0.05)

    reply = SCRIPT[turn]
    killing = replace(reply, first=kill) if call is None else replace(reply, drop_after=call, between=kill)
    script = script_with(turn, killing)
    make_workspace(tmp_path / "workspace")
    with scripted_server(*script) as server:
        sessions.run(tmp_path, server.url)
        check_resume(tmp_path / "run.db", server, whole, cut)


@pytest.mark.parametrize("seed", range(AT_RANDOM))
def test_sigkill_at_random(seed: int, sessions: Sessions, whole: Whole, cut: Cut, tmp_path: Path) -> None:
    """At a random time after a random request."""
    chosen = random.Random(seed)
    turn, delay = chosen.randrange(len(SCRIPT) - 1), chosen.uniform(0.0, 0.1)

    timers: list[threading.Timer] = []

    def kill_later() -> None:
        timers.append(threading.Timer(delay, sessions.kill))
        timers[-1].start()

    script = script_with(turn, replace(SCRIPT[turn], first=kill_later))
    make_workspace(tmp_path / "workspace")
    with scripted_server(*script) as server:
        sessions.run(tmp_path, server.url)
        for timer in timers:  # it must not reach the next test's run
            timer.cancel()
            timer.join()
        if len(server.bodies) < len(SCRIPT) or not _ended(tmp_path / "run.db"):
            check_resume(tmp_path / "run.db", server, whole, cut)


def test_they_are_a_hundred(whole: Whole) -> None:
    assert 2 * whole.commits - 1 + TORN + len(IN_REPLIES) + AT_RANDOM >= 100


def script_with(turn: int, killing: Reply) -> list[Reply | list[Reply]]:
    """The script, in which the first request of that turn is answered otherwise."""
    return [[killing, reply] if i == turn else reply for i, reply in enumerate(SCRIPT)]


def _ended(path: Path) -> bool:
    with EventLog.open(path) as log:
        return bool(read_progress(log).end)
