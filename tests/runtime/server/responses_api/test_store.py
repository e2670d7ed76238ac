"""The store of responses against a model of what it promises."""

import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deeproot.runtime.server.responses_api.store import ResponseStore, UnknownResponse

ROOM = 1500


def body(response_id: str, previous: str | None, text: str) -> dict[str, Any]:
    return {"id": response_id, "previous_response_id": previous, "output": [{"said": text}]}


class StoreMachine(RuleBasedStateMachine):
    """Responses of two owners follow each other; the store is too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ResponseStore(None, ROOM)
        self.made: dict[str, tuple[str, str | None, list[dict[str, Any]]]] = {}
        self.deleted: set[str] = set()

    def alive(self, response_id: str) -> bool:
        try:
            self.store.get(self.made[response_id][0], response_id)
        except UnknownResponse:
            return False
        return True

    def size(self, response_id: str) -> int:
        _, previous, items = self.made[response_id]
        return len(msgspec.json.encode(items)) + len(
            msgspec.json.encode(body(response_id, previous, response_id))
        )

    def chain(self, response_id: str | None) -> list[str]:
        ids: list[str] = []
        while response_id is not None:
            ids.append(response_id)
            response_id = self.made[response_id][1]
        return ids[::-1]

    @rule(data=st.data(), owner=st.sampled_from(["a", "b"]), size=st.integers(1, 300))
    def put(self, data: st.DataObject, owner: str, size: int) -> None:
        mine = [None, *(i for i, made in self.made.items() if made[0] == owner and self.alive(i))]
        previous = data.draw(st.sampled_from(mine))
        response_id = f"r{len(self.made)}"
        items = [{"given": response_id, "pad": "x" * size}]
        self.made[response_id] = (owner, previous, items)
        self.store.put(owner, body(response_id, previous, response_id), items)
        # A conversation that is larger than the store loses its end.
        assert self.alive(response_id) or sum(map(self.size, self.chain(response_id))) > ROOM

    @precondition(lambda self: self.made)
    @rule(data=st.data(), owner=st.sampled_from(["a", "b"]))
    def converse(self, data: st.DataObject, owner: str) -> None:
        response_id = data.draw(st.sampled_from(sorted(self.made)))
        chain = self.chain(response_id)
        reachable = self.made[response_id][0] == owner and all(map(self.alive, chain))
        if not reachable:
            with pytest.raises(UnknownResponse):
                self.store.conversation(owner, response_id)
            return
        expected = [item for i in chain for item in (*self.made[i][2], {"said": i})]
        assert self.store.conversation(owner, response_id) == expected

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        response_id = data.draw(st.sampled_from(sorted(self.made)))
        if self.alive(response_id):
            self.store.delete(self.made[response_id][0], response_id)
            self.deleted.add(response_id)
        with pytest.raises(UnknownResponse):
            self.store.delete(self.made[response_id][0], response_id)

    @invariant()
    def what_is_kept_can_be_followed_back(self) -> None:
        for response_id in self.made:
            if self.alive(response_id):
                gone = [i for i in self.chain(response_id) if not self.alive(i)]
                assert set(gone) <= self.deleted

    @invariant()
    def the_bound_holds(self) -> None:
        kept = [i for i in self.made if self.alive(i)]
        assert sum(map(self.size, kept)) <= ROOM

    def teardown(self) -> None:
        self.store.close()


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestStore = StoreMachine.TestCase


def test_responses_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    first = ResponseStore(path, 10_000)
    first.put("a", body("r1", None, "one"), [{"n": 1}])
    first.close()
    second = ResponseStore(path, 10_000)
    second.put("a", body("r2", "r1", "two"), [{"n": 2}])
    assert second.conversation("a", "r2") == [{"n": 1}, {"said": "one"}, {"n": 2}, {"said": "two"}]
    with pytest.raises(UnknownResponse):
        second.get("b", "r1")
    second.close()


def test_two_servers_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    stores = [ResponseStore(path, 10**6) for _ in range(2)]

    def write(number: int) -> None:
        for i in range(30):
            stores[number].put("a", body(f"r{number}-{i}", f"r{number}-{i - 1}" if i else None, "x"), [])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert len(stores[1 - number].conversation("a", f"r{number}-29")) == 30
    for store in stores:
        store.close()


def test_one_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(None, 100)
    store.put("a", body("r", None, "x" * 200), [])
    with pytest.raises(UnknownResponse):
        store.get("a", "r")
    store.close()
