"""The history against all sequences that it should know."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.engine.radix_node import common_tokens
from deeproot.runtime.explain.history import Chat, History, Past, Tenant

sequences = st.lists(st.integers(0, 2) | st.integers(250, 70_000), min_size=1, max_size=12)


def as_bytes(ids: list[int]) -> bytes:
    return np.asarray(ids, dtype=np.int32).tobytes()


def past(rid: str, ids: list[int], namespace: bytes = b"", chat: Chat | None = None) -> Past:
    return Past(rid, Tenant(b"", namespace), as_bytes(ids), len(ids), chat, 0)


@settings(max_examples=300, deadline=None)
@given(
    known=st.lists(st.tuples(sequences, st.integers(0, 5), st.sampled_from([b"", b"a"])), max_size=12),
    wanted=st.lists(sequences, min_size=1, max_size=4),
)
def test_the_longest_start_ever_seen_is_found(
    known: list[tuple[list[int], int, bytes]], wanted: list[list[int]]
) -> None:
    history, put = History(10**6), list[tuple[list[int], bytes]]()
    for i, (tail, base, namespace) in enumerate(known):
        ids = (put[base][0][: base + 1] if base < len(put) else []) + tail
        history.put(past(str(i), ids, namespace))
        put.append((ids, namespace))
    for namespace in (b"", b"a", b"b"):
        mine = [as_bytes(ids) for ids, name in put if name == namespace]
        for ids in [*wanted, *([*ids, 7] for ids, _ in put)]:
            data = as_bytes(ids)
            found, common = history.nearest(namespace, data, None)
            assert common == max((common_tokens(one, data) for one in mine), default=0)
            assert (found is None) == (common == 0)
            if found is not None:
                assert found.tenant.namespace == namespace
                assert common_tokens(found.ids, data) == common


@settings(max_examples=100, deadline=None)
@given(known=st.lists(st.tuples(sequences, st.integers(0, 9)), max_size=30), bound=st.integers(0, 5000))
def test_the_bound_is_kept_and_the_newest_stays(known: list[tuple[list[int], int]], bound: int) -> None:
    history = History(bound)
    for ids, rid in known:
        new = past(str(rid), ids)
        history.put(new)
        assert history.num_bytes <= bound
        assert (history.get(str(rid)) is new) == (new.num_bytes <= bound)
        if new.num_bytes <= bound:
            assert history.nearest(b"", new.ids, None)[1] == len(ids)
    for rid in range(10):
        kept = history.get(str(rid))
        assert kept is None or history.nearest(b"", kept.ids, None)[1] == kept.num_prompt


def test_what_goes_on_takes_the_place_of_what_it_continues() -> None:
    history = History(10**6)
    for turn in range(1, 100):
        history.put(past(str(turn), list(range(turn * 5))))
    assert history.get("98") is None
    assert history.num_bytes < 2 * past("99", list(range(495))).num_bytes


def test_of_several_that_share_as_much_the_own_conversation_is_taken() -> None:
    history = History(10**6)
    chats = [
        Chat([{"role": "system", "content": str(i)}, {"role": "user", "content": str(i)}], (), {})
        for i in range(5)
    ]
    for i, chat in enumerate(chats):
        history.put(past(str(i), [1, 2, 10 + i, 3], chat=chat))
    asked = Chat([{"role": "system", "content": "x"}, {"role": "user", "content": "2"}], (), {})
    found, common = history.nearest(b"", as_bytes([1, 2, 99, 3]), asked)
    assert common == 2
    assert found is not None
    assert found.rid == "2"
    found, _ = history.nearest(b"", as_bytes([1, 2, 99, 3]), None)
    assert found is not None
    assert found.rid == "2", "used last"
