"""Whose sets are kept, how many, and what outlives a server and a full disk."""

from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.remote_working_sets import RemoteError, RemoteWorkingSet, WorkingSets

from ..harness import running_server
from .sets import status_of


def test_another_key_sees_nothing(options: EngineOptions) -> None:
    with running_server(options, ServerOptions(port=0, api_keys=("one", "two"))) as running:
        mine, theirs = (WorkingSets(running.url, api_key=key) for key in ("one", "two"))
        kept = mine.create(budget=1500, messages=[{"role": "user", "content": "Secret"}])
        assert (len(mine.all()), theirs.all()) == (1, [])
        stranger = RemoteWorkingSet(theirs, kept.set_id, 1)
        unknown = RemoteWorkingSet(theirs, "ws_0", 1)
        for other in (stranger, unknown):
            for act in (
                other.context,
                other.export,
                other.delete,
                other.complete,
                lambda o=other: o.append(),
            ):
                with pytest.raises(RemoteError) as error:
                    act()
                assert status_of(error) == (404, "not_found")
            with pytest.raises(RemoteError, match="no working set"):
                list(other.stream())
            with pytest.raises(RemoteError, match="no working set"):
                theirs.open(other.set_id)
        assert kept.export().count("Secret") == 1


def test_a_client_has_so_many_and_so_much(options: EngineOptions) -> None:
    limits = ServerOptions(port=0, api_keys=("one", "two"), max_working_sets=2, working_set_bytes=5000)
    with running_server(options, limits) as running:
        mine, theirs = (WorkingSets(running.url, api_key=key) for key in ("one", "two"))
        first, _ = mine.create(policy="append_only"), mine.create(policy="append_only")
        with pytest.raises(RemoteError) as error:
            mine.create(policy="append_only")
        assert status_of(error) == (413, "working_sets_full")
        theirs.create(policy="append_only", messages=[{"role": "user", "content": "x" * 4000}])
        first.append(messages=[{"role": "user", "content": "x" * 2500}])
        with pytest.raises(RemoteError, match="working-set-bytes"):
            first.append(messages=[{"role": "user", "content": "x" * 2500}])
        assert first.num_events == len(first.export().splitlines()) == 1
        first.delete()
        assert len(mine.all()) == 1
        mine.create(policy="append_only", messages=[{"role": "user", "content": "x" * 4000}])


def test_sets_outlive_the_server(options: EngineOptions, tmp_path: Path) -> None:
    kept_in = ServerOptions(port=0, working_set_store=tmp_path / "sets")
    with running_server(options, kept_in) as running, WorkingSets(running.url) as client:
        kept = client.create(budget=900, keep_turns=1, messages=[{"role": "user", "content": "Remember me"}])
        gone = client.create(policy="append_only", messages=[{"role": "user", "content": "Forget me"}])
        kept.complete(max_tokens=3)
        before, described = kept.context(), client.all()[0]
        gone.delete()
    assert not list((tmp_path / "sets").rglob(f"{gone.set_id}*"))
    broken = tmp_path / "sets" / "anyone" / "ws_broken"
    broken.mkdir()
    (broken / "settings.json").write_text("{")
    with running_server(options, kept_in) as running, WorkingSets(running.url) as client:
        assert client.all() == [described]
        again = client.open(kept.set_id)
        assert again.context() == before
        assert again.append(messages=[{"role": "user", "content": "Go on"}]) == 3
    assert broken.exists()


def test_a_full_disk_appends_nothing_and_hurts_no_other_set(
    options: EngineOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite is told how large a log may become: what it then says is what it says of a full disk."""
    kept_in = ServerOptions(port=0, working_set_store=tmp_path / "sets")
    long = {"messages": [{"role": "user", "content": "x" * 50_000}]}
    with running_server(options, kept_in) as running, WorkingSets(running.url) as client:
        full = client.create(policy="append_only", messages=[{"role": "user", "content": "Hello"}])
        other = client.create(policy="append_only", messages=[{"role": "user", "content": "Hello"}])
        service = running.state.working_sets

        def of_log(pragma: str) -> int:
            """In the thread of the logs."""
            log = service._store.get("", full.set_id).log
            return int(service._thread.submit(lambda: log._db.execute(pragma).fetchone()[0]).result())

        before, pages = full.export(), of_log("PRAGMA page_count")
        of_log(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(RemoteError, match="The store of working sets has failed") as failed:
            full.append(**long)
        assert failed.value.status == 503
        assert full.export() == before
        assert full.complete(max_tokens=2, record=False)["choices"][0]["finish_reason"] == "length"
        assert other.complete(max_tokens=2)["choices"][0]["finish_reason"] == "length"

        def no_room(log: EventLog, new: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(EventLog, "extend", no_room)
            with pytest.raises(RemoteError) as failed:
                client.create(policy="append_only", messages=[{"role": "user", "content": "Hello"}])
            assert failed.value.status == 503
        assert len(client.all()) == len(list((tmp_path / "sets").rglob("settings.json"))) == 2
        of_log(f"PRAGMA max_page_count = {pages + 100}")
        assert full.append(**long) == 2
        running.wait_idle()
