"""Requests that are set back for want of pages, in pools of any size that holds one of them."""

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.scheduler.rig import alone, make_scheduler, request

from deeproot.scheduler.invariants import check, check_idle

MAX_LEN = 40

Wish = tuple[int, int, int]
"""Tokens of the prompt, tokens of output, priority."""
wishes = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 1)), min_size=2, max_size=10
)


@given(
    wishes=wishes,
    page_size=st.sampled_from([1, 2, 4]),
    spare=st.integers(0, 30),
    seqs=st.integers(2, 6),
    more_budget=st.integers(0, 4),
    overlap=st.booleans(),
)
@example(
    wishes=[(5, 25, 0), (9, 24, 1), (17, 22, 0), (20, 16, 0), (14, 24, 0)],
    page_size=2,
    spare=6,
    seqs=5,
    more_budget=4,
    overlap=True,
).via("one that computed again what it had was set back before it had written")
@settings(max_examples=80, deadline=None)
def test_everything_ends_and_nobody_is_set_back_twice_in_vain(
    wishes: list[Wish], page_size: int, spare: int, seqs: int, more_budget: int, overlap: bool
) -> None:
    """Steps are small, so that others write much while one computes again what it had."""
    num_pages = -(-(MAX_LEN + spare) // page_size)
    scheduler = make_scheduler(page_size, num_pages, seqs, seqs + more_budget, MAX_LEN, overlap)
    for i, (num_prompt, num_output, priority) in enumerate(wishes):
        message = request(str(i), [i] * num_prompt, num_output)
        scheduler.add(msgspec.structs.replace(message, priority=priority))
    said: dict[str, list[int | None]] = {}
    num_set_back = 0
    while scheduler.has_work:
        computed, running = scheduler.counters.computed, list(scheduler.table.running())
        before = {one: one.tokens_when_preempted for one in running}
        for output in scheduler.step():
            said.setdefault(output.rid, []).append(output.token_id)
        check(scheduler)
        assert scheduler.counters.computed > computed or scheduler.flights, "a step in which nothing got on"
        for one in set(scheduler.waiting).intersection(running):
            num_set_back += 1
            assert one.num_tokens > before[one], "set back twice without having written"
    check_idle(scheduler)
    assert num_set_back == scheduler.counters.preemptions
    for i, (num_prompt, num_output, _) in enumerate(wishes):
        assert said[str(i)] == alone([i] * num_prompt, num_output, MAX_LEN)[0]
