"""Leases on a small trace: the same requests, more of them cached, none refused."""

import numpy as np
import pytest

from deeproot.bench.hints import ARMS, Agents, main, pool_pages, run, working_tokens
from deeproot.bench.hints_many import COMPARED, play, rows
from deeproot.bench.hints_many import main as many
from deeproot.bench.simulator.load import Flood


def test_leases_keep_waiting_agents_cached_beside_a_flood() -> None:
    agents, flood = Agents(sessions=6, turns=8), Flood(arrival_s=1.5, window=4000)
    num_pages = pool_pages(working_tokens(agents, 0), 0.3)
    plain, everything = (run(arm, agents, flood, 60, num_pages, 0) for arm in (ARMS[0], ARMS[-1]))
    assert len(plain.records) == len(everything.records) == 6 * 8 + 60
    counters = [simulation.scheduler.counters for simulation in (plain, everything)]
    assert counters[0].prompt == counters[1].prompt, "another trace"
    assert counters[1].cached > 1.02 * counters[0].cached
    for simulation in (plain, everything):
        assert all(record.first_token > 0 for record in simulation.records)
        leases = simulation.scheduler.cache.leases
        leases.expire(simulation.clock.now + leases.limits.max_seconds)
        assert len(leases) == 0


def test_the_command_prints_a_line_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--turns", "2", "--cold", "5"]) == 0
    printed = capsys.readouterr().out
    assert all(arm.name in printed for arm in ARMS)


def test_traces_are_pooled_and_shown_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    traces = [tuple(play(arm, "hrrn", 0.25, seed) for arm in COMPARED) for seed in (0, 1)]
    for pair in traces:
        counters = [simulation.scheduler.counters for simulation in pair]
        assert counters[0].prompt == counters[1].prompt, "another trace"
    found = {row[0]: row[1:] for row in rows("hrrn", traces)}
    everything = [r.first_token - r.came for plain, _ in traces for r in plain.records]
    assert found["hrrn: all, p99, s"][0] == f"{np.percentile(everything, 99):.2f}"
    assert all(cells[-1].endswith("of 2") for cells in found.values())
    assert many(["--traces", "1"]) == 0
    assert "of 1" in capsys.readouterr().out
