"""Replies to working sets: what is sent, streamed and logged."""

import pytest

from deeproot.runtime.options import EngineOptions
from deeproot.runtime.remote_working_sets import RemoteError, WorkingSets

from ..harness import RunningServer, ScriptedForward, SlowForward, running_server, wait_until
from .sets import BASH, status_of


def test_an_agent_sends_only_what_is_new(server: RunningServer, sets: WorkingSets) -> None:
    runner = server.engine.scheduler.runner
    assert isinstance(runner, ScriptedForward)
    call = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "pytest"}}\n</tool_call>'
    seed = runner.will_say(call)
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Run the tests."}], tools=[BASH])
    answer = kept.complete(seed=seed, max_tokens=120)
    made = answer["choices"][0]["message"]["tool_calls"][0]
    assert (made["function"]["name"], kept.num_events) == ("bash", 3)
    assert answer["deeproot"]["working_set"] == {"id": kept.set_id, "num_events": 3}
    result = {"role": "tool", "tool_call_id": made["id"], "name": "bash", "content": "2 passed"}
    seed = runner.will_say("All pass.")
    again = kept.complete(messages=[result], seed=seed, max_tokens=40)
    assert again["choices"][0]["message"]["content"] == "All pass."
    # The turn before is in the cache, tool call and all, but for the reminder's and the status's place.
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= answer["usage"]["prompt_tokens"]
    roles = [message["role"] for message in kept.context()["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]


def test_a_stream_says_and_logs_the_same(server: RunningServer, sets: WorkingSets) -> None:
    asked = {"budget": 1500, "messages": [{"role": "user", "content": "Say something."}]}
    whole, streamed = sets.create(**asked), sets.create(**asked)
    options = {"max_tokens": 12, "seed": 5, "temperature": 1.0}
    answer = whole.complete(**options)["choices"][0]
    chunks = list(streamed.stream(**options, stream_options={"include_usage": True}))
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == answer["message"]["content"]
    assert chunks[-1]["deeproot"]["working_set"] == {"id": streamed.set_id, "num_events": 2}
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert streamed.num_events == whole.num_events == 2
    assert streamed.context()["messages"] == whole.context()["messages"]


def test_a_reply_that_is_not_to_be_kept(sets: WorkingSets) -> None:
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Try."}])
    answer = kept.complete(max_tokens=3, record=False)
    assert "deeproot" not in answer
    assert len(kept.export().splitlines()) == 1


def test_a_reply_that_is_cut_off_is_not_logged(options: EngineOptions) -> None:
    with running_server(options, wrap=lambda engine: SlowForward(engine.scheduler.runner, 0.02)) as running:
        with WorkingSets(running.url) as client:
            kept = client.create(budget=1500, messages=[{"role": "user", "content": "Talk."}])
            stream = kept.stream(max_tokens=500, ignore_eos=True)
            next(stream)
            other = client.open(kept.set_id)
            for act in (other.complete, lambda: other.append(messages=[{"role": "user", "content": "Stop"}])):
                with pytest.raises(RemoteError) as error:
                    act()
                assert status_of(error) == (409, "conflict")
            stream.close()

            def let_go() -> bool:
                try:
                    return other.append(messages=[{"role": "user", "content": "Stop"}]) == 2
                except RemoteError:
                    return False

            wait_until(let_go)
            assert "assistant" not in kept.export()
        running.wait_idle()
