"""The scheduler under simulated loads: what it promises of order, pace and preemption, checked after every step."""

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np
import pytest

from deeproot.bench.cachesim.made_runs import Spread
from deeproot.bench.simulator.__main__ import main
from deeproot.bench.simulator.load import Call, Fleet, Flood, Source, once, recorded
from deeproot.bench.simulator.simulate import Beginnings, Record, Simulation
from deeproot.bench.simulator.summary import overtaken
from deeproot.scheduler.config import POLICIES, Policy, SchedulerConfig


def crowd() -> list[Beginnings]:
    """More than the device can do, so that a queue forms."""
    small = Fleet(arrival_s=1.0, root_tokens=600, turns=Spread(5, 0.6), window=4000)
    return [small.sources(1), Flood(arrival_s=0.09, prompt=Spread(900, 0.9), window=4000).sources(2)]


def simulate(policy: Policy = "hrrn", most: int = 150, num_pages: int = 300, **config: object) -> Simulation:
    simulation = Simulation(SchedulerConfig(16, 512, 4096, policy=policy, **config), num_pages)
    simulation.run(crowd(), most)
    return simulation


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_and_none_is_overtaken_for_too_long(policy: Policy) -> None:
    records = simulate(policy).records
    assert len(records) == 150
    assert all(record.came <= record.started < record.first_token <= record.ended for record in records)
    largest = max(record.num_computed for record in records)
    behind = overtaken(records)
    assert all(tokens <= record.allowance + largest for record, tokens in zip(records, behind, strict=True))
    assert any(behind) == (policy != "fcfs")


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate().records == simulate().records


def test_turns_of_a_session_follow_each_other() -> None:
    of_session: dict[str, list[Record]] = {}
    for record in simulate().records:
        if record.session is not None:
            of_session.setdefault(record.session, []).append(record)
    assert any(len(records) > 2 for records in of_session.values())
    for records in of_session.values():
        for one, following in pairwise(records):
            assert following.came >= one.ended
            assert following.num_prompt > one.num_prompt


def test_streams_keep_their_pace_while_long_prompts_are_computed() -> None:
    """A step that writes takes no longer than asked, but for the first ones, by which the pace is learnt."""

    def load() -> Iterator[tuple[float, Source]]:
        rng = np.random.default_rng(0)
        for i in range(4):
            answer = rng.integers(4, 99, 400).astype(np.int32)
            yield 0.0, once(Call("stream", 0.0, rng.integers(4, 99, 200 + i).astype(np.int32), answer))
        for i in range(3):
            prompt = rng.integers(4, 99, 3500).astype(np.int32)
            yield 1.0 + i, once(Call("long", 1.0 + i, prompt, prompt[:1]))

    worst = {}
    for target in (None, 0.025):
        simulation = Simulation(SchedulerConfig(16, 1024, 4096, max_itl_s=target), 400)
        simulation.run([load()], 7)
        gaps = [gap for record in simulation.records if record.kind == "stream" for gap in record.gaps]
        worst[target] = sorted(gaps)
    assert worst[None][-1] > 0.045
    assert worst[0.025][-1] <= 0.045
    assert worst[0.025][-5] <= 0.025 * 1.05


@pytest.mark.parametrize("reserved", [1, 64])
def test_preempted_requests_make_progress(reserved: int) -> None:
    """A pool for two of eight that all write much: each comes to its end, and none is sent back without having written."""

    def load() -> Iterator[tuple[float, Source]]:
        rng = np.random.default_rng(3)
        for i in range(8):
            prompt, answer = (rng.integers(4, 99, n).astype(np.int32) for n in (250 + i, 300))
            yield 0.0, once(Call("writer", 0.0, prompt, answer))

    simulation = Simulation(SchedulerConfig(8, 256, 640, reserved_output=reserved), 20)
    simulation.run([load()], 8)
    preemptions = simulation.scheduler.counters.preemptions
    assert preemptions > 0 if reserved == 1 else preemptions < 8
    assert preemptions <= 8 * 300


def test_recorded_requests_come_when_they_came() -> None:
    simulation = Simulation(SchedulerConfig(16, 2048, 131_072), 4096, check_every=10)
    simulation.run([recorded(30, speed=4.0)], 30)
    expected = [time_s for time_s, _ in islice(recorded(30, speed=4.0), 30)]
    assert [record.came for record in simulation.records] == expected


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "150", "--policies", "hrrn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
