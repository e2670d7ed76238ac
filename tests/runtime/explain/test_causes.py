"""Each cause beside the one that it could be taken for."""

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest

from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.explain.report import Cause, Explanation

from .conversation import (
    ANSWER,
    ASK,
    MORE,
    PROFILE,
    RULES,
    TALK,
    TOOLS,
    Talk,
    assistant,
    system,
    tool,
    user,
)


def after_change(talk: Talk, before: str, after: str) -> Explanation:
    """Of a call whose system message changed since the last one."""
    talk.call([system(before), *TALK[:1]], reply=ANSWER)
    return talk.call([system(after), *TALK])


def test_a_conversation_that_goes_on_loses_nothing(talk: Talk) -> None:
    first = talk.call([system(RULES), ASK], reply=ANSWER)
    assert (first.cause, first.ceiling_tokens, first.divergence) == (Cause.FIRST_SEEN, 0, None)
    second = talk.call([system(RULES), *TALK])
    assert second.cause is Cause.FIRST_SEEN
    assert second.ceiling_tokens == second.matched_tokens > first.prompt_tokens
    assert second.divergence is None
    again = talk.call([system(RULES), *TALK])
    assert (again.cause, again.misses) == (None, ())


CHANGES = [
    ("Time: 2026-03-05 10:15.", "Time: 2026-03-05 10:16.", Cause.CHANGED_TIME),
    # A time that stands as a number, beside an id that is one, and one with a time in its digits.
    ("Now: 1772705700.", "Now: 1772705760.", Cause.CHANGED_TIME),
    (
        "Id: 17727057-00aa-4bbb-8ccc-0123456789ab.",
        "Id: 17727058-00aa-4bbb-8ccc-0123456789ab.",
        Cause.CHANGED_ID,
    ),
    ("Trace 0x7f3a9c2d10.", "Trace 0x7f3a9c2d18.", Cause.CHANGED_ID),
    # The same id, and a time that stands behind it.
    (
        "Id: 17727057-00aa-4bbb-8ccc-0123456789ab, 10:15:00.",
        "Id: 17727057-00aa-4bbb-8ccc-0123456789ab, 10:15:01.",
        Cause.CHANGED_TIME,
    ),
    ("This is turn 3.", "This is turn 4.", Cause.CHANGED_COUNTER),
    ("There are 12 messages so far.", "There are 13 messages so far.", Cause.CHANGED_COUNTER),
    # A number that is neither.
    ("The limit is 300 euros.", "The limit is 400 euros.", Cause.CHANGED_TEXT),
    ("She likes tea, coffee, milk.", "She likes milk, tea, coffee.", Cause.CHANGED_ORDER),
    ("She likes tea, coffee, milk.", "She likes milk, tea, cocoa.", Cause.CHANGED_TEXT),
    ("She likes tea.", "She  likes\ntea.", Cause.CHANGED_WHITESPACE),
    ('State: {"a": 1, "b": [2, "é"]}.', 'State: {"b":[2,"\\u00e9"],"a":1}.', Cause.RESERIALISED_JSON),
    ('State: {"a": 1, "b": [2, 3]}.', 'State: {"b": [3, 2], "a": 1}.', Cause.CHANGED_ORDER),
    ('State: {"a": 1, "b": [2, 3]}.', 'State: {"a": 1, "b": [2, 4]}.', Cause.CHANGED_TEXT),
]


@pytest.mark.parametrize("where", ["head", "middle", "end"])
@pytest.mark.parametrize(("before", "after", "cause"), CHANGES)
def test_what_changed_in_the_system_message(
    talk: Talk, before: str, after: str, cause: Cause, where: str
) -> None:
    around = {"head": "{} " + RULES, "middle": RULES + "\n{}\n" + PROFILE, "end": RULES + " {}"}[where]
    found = after_change(talk, around.format(before), around.format(after))
    assert found.cause is cause
    assert found.divergence is not None
    assert found.divergence.segment == "messages[0].content"
    assert (found.divergence.role, found.divergence.literal) == ("system", False)
    assert found.divergence.before != found.divergence.after
    assert before[-6:-1] in found.divergence.before
    assert after[-6:-1] in found.divergence.after
    lost = sum(miss.tokens for miss in found.misses if miss.cause is cause)
    assert lost >= len(ANSWER.split())
    assert found.ceiling_tokens == found.matched_tokens == found.divergence.token


def test_other_words_in_the_newest_message_are_no_change_but_new(talk: Talk) -> None:
    talk.call([system(RULES), ASK], reply=ANSWER)
    other = talk.call([system(RULES), user("At what time leaves the train on 2026-03-05?")])
    assert other.cause is Cause.FIRST_SEEN
    third = talk.call([system(RULES), user("At what time leaves the train on 2026-03-06?")])
    assert third.cause is Cause.FIRST_SEEN
    assert third.divergence is not None
    assert third.divergence.segment == "messages[1].content"


@pytest.mark.parametrize("template", ["chatml", "qwen3", "llama3"])
def test_tools_in_another_order_or_other_tools(smol: Tokenizer, template: str) -> None:
    """chatml knows no tools: there the built-in wrapper writes them."""
    other = [TOOLS[0], tool("cancel"), TOOLS[2]]
    respelled = [
        TOOLS[0],
        {"function": dict(reversed(list(TOOLS[1]["function"].items()))), "type": "function"},
        TOOLS[2],
    ]
    changes = [([TOOLS[0], TOOLS[2], TOOLS[1]], Cause.CHANGED_ORDER), (other, Cause.CHANGED_TOOLS)]
    if template != "chatml":  # the wrapper sorts the keys
        changes.append((respelled, Cause.RESERIALISED_JSON))
    for tools, cause in changes:
        talk = Talk(smol, template)
        talk.call([system(RULES), ASK], TOOLS, reply=ANSWER)
        found = talk.call([system(RULES), *TALK], tools)
        assert found.cause is cause
        assert found.divergence is not None
        assert found.divergence.segment == "tools"
        dropped = Talk(smol, template)
        dropped.call([system(RULES), ASK], TOOLS, reply=ANSWER)
        assert dropped.call([system(RULES), *TALK], TOOLS[:1]).cause is Cause.CHANGED_TOOLS


def test_the_system_message_before_the_tools_is_not_the_tools(smol: Tokenizer) -> None:
    talk = Talk(smol, "qwen3")
    talk.call([system(RULES + " At 10:15:00."), ASK], TOOLS, reply=ANSWER)
    found = talk.call([system(RULES + " At 10:16:00."), *TALK], TOOLS)
    assert found.cause is Cause.CHANGED_TIME
    assert found.divergence is not None
    assert found.divergence.segment == "messages[0].content"


LONG = [user("Is Rome nice?"), assistant("It is."), user("And Oslo?"), assistant("Colder."), user("Bern?")]


def test_messages_that_are_gone_from_the_middle_or_came_there(talk: Talk) -> None:
    """Windows that slide number the turns, say: each message differs from the one in its place by a counter."""
    turns = [
        message
        for i in range(6)
        for message in (user(f"Turn {i}: what now?"), assistant(f"Step {i} is done."))
    ]
    talk.call([system(RULES), *turns[:9]], reply="Step 4 is done.")
    slid = talk.call([system(RULES), *turns[2:11]])
    assert slid.cause is Cause.MESSAGES_REMOVED
    assert slid.divergence is not None
    assert slid.divergence.segment == "messages[1].content"
    talk = Talk(talk.tokenizer)
    talk.call([system(RULES), *LONG], reply="Quiet.")
    inserted = talk.call([system(RULES), LONG[0], assistant("Well, it is."), user("Sure?"), *LONG[1:], MORE])
    assert inserted.cause is Cause.MESSAGES_INSERTED
    talk = Talk(talk.tokenizer)
    talk.call([system(RULES), *LONG], reply="Quiet.")
    edited = talk.call([system(RULES), user("Is Paris nice?"), *LONG[1:], assistant("Quiet."), MORE])
    assert edited.cause is Cause.CHANGED_TEXT


def test_a_date_of_the_template_is_not_a_message(smol: Tokenizer) -> None:
    talk = Talk(smol, "llama3")
    talk.call([system(RULES), ASK], reply=ANSWER)
    talk.now = datetime(2026, 3, 6)
    found = talk.call([system(RULES), *TALK])
    assert found.divergence is not None
    assert found.divergence.literal
    assert found.cause is Cause.CHANGED_TIME


def test_history_as_text(talk: Talk) -> None:
    reply = "To the mountains, I would say, because they are high and cool."
    talk.call([system(RULES), user("Now: where shall I go?")], reply=reply)
    text = f"Before:\nuser: where shall I go?\nassistant: {reply}\nNow: which ones?"
    found = talk.call([system(RULES), user(text)])
    assert found.cause is Cause.HISTORY_AS_TEXT
    other = talk.call([system(RULES), user("Before:\nuser: what is Rome?\nassistant: A city.\nNow: thanks")])
    assert other.cause is Cause.FIRST_SEEN


def test_evicted_restarted_and_lost_without_a_trace(talk: Talk) -> None:
    messages = [system(RULES), ASK]
    first = talk.call(messages)
    n = first.prompt_tokens - 1
    evicted = talk.call(messages, cached=10, evicted=n - 10)
    assert [(m.cause, m.tokens) for m in evicted.misses] == [(Cause.EVICTED, n - 10)]
    assert evicted.ceiling_tokens == n
    half = talk.call(messages, cached=10, evicted=5)
    assert [(m.cause, m.tokens) for m in half.misses] == [(Cause.EVICTED, 5), (Cause.NOT_CACHED, n - 15)]
    talk.restarts += 1
    restarted = talk.call(messages, cached=0)
    assert restarted.cause is Cause.ENGINE_RESTARTED
    same_engine = talk.call(messages, cached=0)
    assert same_engine.cause is Cause.NOT_CACHED
    never = talk.call([system("Something else altogether."), user("What?")])
    assert never.cause is Cause.FIRST_SEEN


def test_what_was_evicted_and_what_changed_behind_it(talk: Talk) -> None:
    talk.call([system(RULES + " 10:15:00"), ASK], reply=ANSWER)
    found = talk.call([system(RULES + " 10:16:00"), *TALK], cached=4, evicted=6)
    causes = [miss.cause for miss in found.misses]
    assert causes[0] is Cause.EVICTED
    assert Cause.CHANGED_TIME in causes
    assert causes[-1] is Cause.FIRST_SEEN


def test_preempted_is_not_evicted(talk: Talk) -> None:
    messages = [system(RULES), ASK]
    first = talk.call(messages, recomputed=7)
    assert [m.cause for m in first.misses] == [Cause.FIRST_SEEN, Cause.PREEMPTED]
    second = talk.call(messages, recomputed=7)
    assert [(m.cause, m.tokens) for m in second.misses] == [(Cause.PREEMPTED, 7)]
    assert talk.call(messages).cause is None


def test_a_salt_is_named_only_to_who_knows_the_other_request(talk: Talk) -> None:
    messages = [system(RULES), ASK]
    one, other = Tenant(b"key", b"one"), Tenant(b"key", b"other")
    first = talk.call(messages, tenant=one)
    blind = talk.call(messages, tenant=other)
    assert (blind.cause, blind.ceiling_tokens, blind.divergence) == (Cause.FIRST_SEEN, 0, None)
    third = Tenant(b"key", b"third")
    told = talk.call(messages, tenant=third, since=first.id)
    assert told.cause is Cause.SALT
    stranger = Tenant(b"other key", b"x")
    assert talk.call(messages, tenant=stranger, since=first.id).cause is Cause.FIRST_SEEN
    # Named, but it shares nothing: the salt is not the reason.
    unlike = Tenant(b"key", b"fourth")
    assert talk.call([user("Hm?")], tenant=unlike, since=first.id).misses[0].tokens < 12
    same = talk.call([system(RULES + " 10:15:00"), ASK], tenant=one)
    assert (
        talk.call([system(RULES + " 10:16:00"), *TALK], tenant=one, since=same.id).cause is Cause.CHANGED_TIME
    )


def test_no_text_of_another_tenant_is_shown(talk: Talk) -> None:
    """With and without A's request, B is told the same."""

    def of_b(a_was_here: bool) -> dict[str, Any]:
        fresh = Talk(talk.tokenizer)
        if a_was_here:
            fresh.call([system(RULES + " 10:15:00"), *TALK], tenant=Tenant(b"A", b"A"))
        found = fresh.call([system(RULES + " 10:16:00"), ASK], tenant=Tenant(b"B", b"B"))
        return {
            name: getattr(found, name) for name in found.__struct_fields__ if name not in ("id", "created")
        }

    assert of_b(True) == of_b(False)


def test_plain_prompts(talk: Talk) -> None:
    text = "At 10:15:00 the train leaves from Rome to Paris, and it takes a long time to get there."
    talk.complete(text)
    goes_on = talk.complete(text + " Yes. And then?")
    assert goes_on.divergence is None
    changed = talk.complete(text.replace("10:15", "10:16") + " Yes. And then?")
    assert changed.cause is Cause.CHANGED_TIME
    assert changed.divergence is not None
    assert (changed.divergence.segment, changed.divergence.role) == ("prompt", None)
    assert talk.complete("Once upon a time").cause is Cause.FIRST_SEEN


def test_it_goes_as_json(talk: Talk) -> None:
    found = after_change(talk, RULES + " 10:15:00", RULES + " 10:16:00")
    data = json.loads(msgspec.json.encode(found))
    assert data["cause"] == "changed_time"
    assert data["divergence"]["earlier"] == "call-1"
