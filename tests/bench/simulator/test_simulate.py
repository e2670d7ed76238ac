"""The scheduler under simulated loads: what it promises of order, pace and preemption, checked after every step."""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.made_runs import Spread
from deeproot.bench.simulator.__main__ import main
from deeproot.bench.simulator.load import Call, Fleet, Flood, Source, once, recorded
from deeproot.bench.simulator.simulate import Beginnings, Record, Simulation
from deeproot.bench.simulator.summary import Overtaken, overtaken, worst_overtaking
from deeproot.scheduler.config import POLICIES, Policy, SchedulerConfig
from deeproot.scheduler.waiting import WaitingRequests


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


@given(
    seed=st.integers(0, 2**16),
    policy=st.sampled_from(POLICIES),
    spare=st.just(0) | st.integers(0, 40),
    seqs=st.integers(1, 8),
    budget=st.sampled_from([16, 64, 256]),
    options=st.fixed_dictionaries(
        {
            "patience": st.sampled_from([0.0, 0.5, 2.0]),
            "reserved_output": st.sampled_from([1, 128]),
            "max_itl_s": st.sampled_from([None, 0.01]),
            "overlap": st.booleans(),
        }
    ),
)
@settings(max_examples=20, deadline=None)
def test_no_request_waits_for_more_than_is_stated(
    seed: int, policy: Policy, spare: int, seqs: int, budget: int, options: dict[str, Any]
) -> None:
    """Any load, in a pool of any size that holds one request: all are answered, and the bound holds for each."""

    def load() -> Iterator[tuple[float, Source]]:
        rng = np.random.default_rng(seed)
        roots = [rng.integers(4, 99, n).astype(np.int32) for n in (0, 40, 300)]
        now = 0.0
        for _ in range(40):
            now += float(rng.exponential(0.01))
            num_prompt = int(min(rng.lognormal(3, 1.5), 280)) + 1
            own = rng.integers(4, 99, num_prompt).astype(np.int32)
            prompt = np.concatenate([roots[rng.integers(3)][: 500 - num_prompt], own])
            answer = own[: rng.integers(1, 30)]
            session = str(rng.integers(3)) if rng.integers(2) else None
            yield now, once(Call("any", now, prompt, answer, session))

    config = SchedulerConfig(seqs, budget, 544, policy=policy, **options)
    simulation = Simulation(config, 34 + spare, page_size=16, check_every=20)
    simulation.run([load()], 40)
    assert len(simulation.records) == 40
    worst_overtaking(simulation.records)


def test_a_request_that_is_overtaken_too_long_is_found() -> None:
    def record(came: float, started: float, allowance: int) -> Record:
        return Record("", None, came, 100, allowance, started=started, num_computed=100)

    early = [record(1.0 + i, 2.0 + i, 1000) for i in range(5)]
    assert worst_overtaking([record(0.0, 9.0, 500), *early]) == 1.0
    assert worst_overtaking([record(0.0, 9.0, 400), *early]) == 1.25, "the last crosses the line"
    with pytest.raises(Overtaken, match="request 0 was overtaken by 500 tokens where 399"):
        worst_overtaking([record(0.0, 9.0, 399), *early])


def test_the_program_fails_where_the_bound_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a queue that lets the newest start first."""
    monkeypatch.setattr(WaitingRequests, "tries", lambda self, n, now: list(self)[::-1][:n])
    assert main(["--requests", "400", "--policies", "hrrn", "--check-every", "50"]) == 1
    assert "was overtaken by" in capsys.readouterr().err


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


def test_room_for_output_saves_preemptions() -> None:
    """A pool for two of eight that all write much."""

    def load() -> Iterator[tuple[float, Source]]:
        rng = np.random.default_rng(3)
        for i in range(8):
            prompt, answer = (rng.integers(4, 99, n).astype(np.int32) for n in (250 + i, 300))
            yield 0.0, once(Call("writer", 0.0, prompt, answer))

    preemptions = {}
    for reserved in (1, 64):
        simulation = Simulation(SchedulerConfig(8, 256, 640, reserved_output=reserved), 20, check_every=20)
        simulation.run([load()], 8)
        preemptions[reserved] = simulation.scheduler.counters.preemptions
    assert preemptions[64] < min(8, preemptions[1])


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
