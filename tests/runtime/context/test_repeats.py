"""A pointer to an earlier output never points to what the prompt does not show."""

import json
import random
import re
from collections.abc import Callable

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet

OUTPUTS = {"git status": "nothing to commit, working tree clean\n" * 4, "cat a.py": "x = 1\ny = 2\n" * 12}


def shown(context: Context) -> dict[int, str]:
    """The words of each staged tool result by the number of its event."""
    found = {}
    for message in context.messages:
        text = str(message["content"])
        if message["role"] == "tool":
            number = re.search(r'^<observation [^>]*event="(\d+)"', text)
            assert number is not None
            found[int(number[1])] = text.split("\n", 1)[1].rsplit("\n", 1)[0]
    return found


def run(log: EventLog, seed: int, turns: int) -> None:
    """Polls, reads, edits and other work in any order."""
    chance = random.Random(seed)
    for i in range(turns):
        command = chance.choice([*OUTPUTS, *OUTPUTS, "make", "sed -i s/1/2/ a.py"])
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        record.assistant(log, f"{i}", tool_calls=[{"id": f"c{i}", "type": "function", "function": function}])
        output = OUTPUTS.get(command, f"word{i} " * chance.randrange(60) if command == "make" else "")
        record.tool_result(log, f"c{i}", output, name="bash", exit_code=0)


@pytest.mark.parametrize("policy", [ThreeZones(3000, keep_turns=1), SlidingWindow(2500), AppendOnly()])
def test_pointers_point_to_what_is_there(
    policy: LayoutPolicy, tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]
) -> None:
    segments, template = SegmentTokenizer(tok), make_template("qwen2.5-instruct")
    pointers = mended = dropped = 0
    for seed in range(4):
        log = EventLog.memory(clock=lambda: 1)
        record.user(log, "Fix it.")
        run(log, seed, 40)
        made = WorkingSet(policy=policy, tokenizer=segments, template=template)
        for upto in range(2, 81, 2):
            context = made.assemble(log, upto=upto + 1)
            dropped += bool(context.report.dropped)
            texts = shown(context)
            for number, text in texts.items():
                if to := re.match(r"\[same output as #(\d+)", text):
                    pointers += 1
                    whole = texts[int(to[1])]
                    assert not whole.startswith("[same output"), f"seed {seed}, event {number}"
                    assert whole.startswith("[stale view") or (
                        whole.strip() == log.payload(log.event(number).payload_hash).decode().strip()
                    )
            mended += "in full again" in str(context.report)
        fresh = WorkingSet(policy=policy, tokenizer=segments, template=template).assemble(log)
        assert fresh.token_ids.tobytes() == made.assemble(log).token_ids.tobytes()
    assert pointers > 20
    assert (dropped > 20, mended > 5) == ((False, False) if isinstance(policy, AppendOnly) else (True, True))
