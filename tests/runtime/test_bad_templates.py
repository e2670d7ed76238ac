"""A chat template that does harm, on every way to it: its request gets an error, those beside and after it do not."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deeproot.runtime.agent.setup import make_working_set
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.remote_working_sets import RemoteError, WorkingSets
from deeproot.runtime.sampling_options import SamplingOptions

from ..helpers.bad_templates import HARM, HARMFUL
from .agent.runs import settings_for
from .server.harness import RunningServer, running_server, wait_until

LIMIT_S = 1.5


@pytest.fixture(scope="module")
def options(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineOptions:
    path = tmp_path_factory.mktemp("template") / "harmful.jinja"
    path.write_text(HARMFUL)
    return EngineOptions(
        model=str(tiny_model),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=16,
        kv_cache_memory_bytes=2**20,
        chat_template=path,
        chat_template_timeout_s=LIMIT_S,
    )


@pytest.fixture(scope="module")
def server(options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(options, ServerOptions(port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def sets(server: RunningServer) -> Iterator[WorkingSets]:
    with WorkingSets(server.url) as client:
        yield client


def asked(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("harm", HARM)
def test_of_a_working_set(sets: WorkingSets, harm: str) -> None:
    sound, harmful = sets.create(policy="append_only"), sets.create(policy="append_only")
    sound.append(**asked("Hello"))
    before = sound.context()["token_ids"]
    harmful.append(**asked(harm))
    for act in (harmful.context, harmful.complete):
        with pytest.raises(RemoteError, match=HARM[harm]) as refused:
            act()
        assert (refused.value.status, refused.value.code) == (400, "invalid_conversation")
    assert sound.context()["token_ids"] == before
    assert sound.complete(max_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_a_chat_beside_a_working_set_that_hangs(server: RunningServer, sets: WorkingSets) -> None:
    harmful = sets.create(policy="append_only")
    harmful.append(**asked("HANG"))
    refusals: list[RemoteError] = []

    def hang() -> None:
        with pytest.raises(RemoteError) as refused:
            harmful.context()
        refusals.append(refused.value)

    hanging = threading.Thread(target=hang)
    hanging.start()
    time.sleep(0.2)
    answered = httpx.post(
        f"{server.url}/v1/chat/completions", json={**asked("Hello"), "max_tokens": 2}, timeout=60
    )
    hanging.join(60)
    assert answered.status_code == 200
    assert [refusal.status for refusal in refusals] == [400]


def test_a_working_set_after_its_process_was_killed(server: RunningServer, sets: WorkingSets) -> None:
    kept = sets.create(policy="append_only")
    kept.append(**asked("Hello"))
    before = kept.context()["token_ids"]
    for pid in server.engine.speech.processes.pids:
        os.kill(pid, signal.SIGKILL)
    assert kept.context()["token_ids"] == before


@pytest.mark.parametrize("path", ["messages", "responses", "chat/completions", "cache/probe"])
def test_of_the_other_surfaces(server: RunningServer, path: str) -> None:
    def post(text: str) -> httpx.Response:
        body = {"responses": {"input": text}, "cache/probe": {"prompts": [asked(text)]}}.get(
            path, {**asked(text), "max_tokens": 2}
        )
        return httpx.post(f"{server.url}/v1/{path}", json={"model": "tiny", **body}, timeout=60)

    refused = post("HANG")
    assert refused.status_code == 400, refused.text
    assert HARM["HANG"] in refused.text
    assert post("Hello").status_code == 200
    server.wait_idle()


def test_of_an_llm(options: EngineOptions) -> None:
    with LLM(options) as llm:
        user = [{"role": "user", "content": "Hello"}]
        short = SamplingOptions(max_tokens=4, temperature=0.0, ignore_eos=True)
        before = llm.chat(user, short).token_ids
        for harm, why in HARM.items():
            with pytest.raises(TemplateError, match=why):
                llm.chat([{"role": "user", "content": harm}], short)
        assert llm.chat(user, short).token_ids == before
        pids = llm._engine.speech.processes.pids
        assert len(pids) == 1
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert llm.chat(user, short).token_ids == before
        pids = llm._engine.speech.processes.pids
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_of_an_agent(options: EngineOptions, tmp_path: Path) -> None:
    working_set = make_working_set(
        settings_for(tmp_path, "http://127.0.0.1:1/v1", chat_template=str(options.chat_template))
    )
    sound, harmful = EventLog.memory(), EventLog.memory()
    record.user(sound, "Hello")
    record.user(harmful, "EAT")
    with pytest.raises(TemplateError, match=HARM["EAT"]):
        working_set.assemble(harmful)
    assert working_set.assemble(sound).token_ids.size
