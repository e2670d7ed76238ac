"""Stories of agents that acted on what was so once, with a scripted model that reads nothing but its prompt."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.price import Stakes, Treatment
from deeproot.runtime.context.invalidation.settle import Settler
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.working_set import WorkingSet

from .conftest import Host, MakeSet

NAME = "buffer.c"
OLD_GUARD = "    if (!pkt) return -1;"
NEW_GUARD = [
    "    if (!pkt || !pkt->header) {",
    '        log_error("Null packet header");',
    "        return -EINVAL;",
    "    }",
]
Messages = Sequence[Mapping[str, Any]]
Prompt = Callable[[], Messages]


def source(dispatch_line: int) -> list[str]:
    """A file in which dispatch_packet is defined on that line, and flush_queue 18 lines before it."""
    lines = [f"static int pad_{i};" for i in range(1, dispatch_line - 18)]
    lines += ["void flush_queue(void) {", "    drain();", "}", *[f"static int gap_{i};" for i in range(15)]]
    assert len(lines) == dispatch_line - 1
    return [*lines, "int dispatch_packet(struct packet_t *pkt) {", OLD_GUARD, "    return send(pkt);", "}"]


@dataclass(frozen=True, slots=True)
class Action:
    """What the model does next; `line` of a patch."""

    name: str
    line: int = 0


def scripted_model(messages: Messages) -> Action:
    """Patches dispatch_packet where the newest view that the prompt does not call stale has it; with none, it reads."""
    text = "\n".join(str(message["content"]) for message in messages)
    if "patched" in text:
        return Action("stop")
    stale = {int(number) for number in re.findall(r"^\[stale #(\d+):", text, re.M)}
    views = re.findall(r"<(?:observation|artifact) [^>]*event=\"(\d+)\">\n(.*?)\n</", text, re.S)
    for seq, body in reversed(views):
        found = re.search(r"^(\d+): int dispatch_packet", body, re.M)
        if found and int(seq) not in stale:
            return Action("patch", int(found[1]))
    return Action("read")


def patch(path: Path, line: int) -> tuple[str, int]:
    """A strict patch tool: the guard after line `line`, which must define dispatch_packet."""
    lines = path.read_text().splitlines()
    found = lines[line - 1] if line <= len(lines) else ""
    if not found.startswith("int dispatch_packet"):
        return f"FATAL: Patch rejected: hunk #1 failed at line {line}. Found {found!r}", 1
    path.write_text("\n".join([*lines[:line], *NEW_GUARD, *lines[line + 1 :]]) + "\n")
    return "patched", 0


def play(host: Host, prompt: Prompt, turns: int = 8) -> list[str]:
    """Let the model act until it stops; what its patches came to."""
    patches = []
    for _ in range(turns):
        action = scripted_model(prompt())
        match action.name:
            case "stop":
                return patches
            case "read":
                host.read(NAME)
            case "patch":
                by, call_id = host.say("patch", file=NAME, line=action.line)
                output, code = patch(host.root / NAME, action.line)
                host.invalidator.wrote([host.root / NAME], by)
                record.tool_result(host.log, call_id, output, name="patch", exit_code=code)
                patches.append(output)
    return patches


def refactor(host: Host, by_agent: bool) -> None:
    """18 lines above both functions, by the agent's own tool or by somebody else."""
    text = "\n".join([*[f"static int new_{i};" for i in range(18)], *source(142)]) + "\n"
    if by_agent:
        host.write(NAME, text)
    else:
        (host.root / NAME).write_text(text)
    host.run("ld", "undefined reference to `route'", exit_code=1)


def settler_for(working_set: WorkingSet, host: Host, treatment: Treatment) -> Settler:
    """Prices at which that treatment is the cheapest: carrying costs next to nothing, or goes on for ever."""
    keep = treatment is Treatment.TAIL
    prices, stakes = Prices(cached=0.001 if keep else 0.3), Stakes(1 if keep else 100_000)
    return Settler(working_set, prices=prices, stakes=stakes, root=str(host.root))


@pytest.mark.parametrize("by_agent", [True, False], ids=["own edit", "somebody else's"])
@pytest.mark.parametrize("treatment", [Treatment.TAIL, Treatment.EVICT])
def test_142_became_160(host: Host, make_set: MakeSet, by_agent: bool, treatment: Treatment) -> None:
    (host.root / NAME).write_text("\n".join(source(142)) + "\n")
    working_set = make_set()
    settler = settler_for(working_set, host, treatment)
    treated: list[Treatment] = []

    def prompt() -> Messages:
        settled = settler.before_call(host.log, host.invalidator)
        treated.extend(settled.choice.treatments.values() if settled.choice else ())
        return settled.context.messages

    host.read(NAME)
    refactor(host, by_agent)
    assert scripted_model(working_set.assemble(host.log).messages) == Action("patch", 142)
    assert play(host, prompt) == ["patched"]
    assert treated[0] is treatment
    lines = (host.root / NAME).read_text().splitlines()
    assert lines[159:164] == ["int dispatch_packet(struct packet_t *pkt) {", *NEW_GUARD]


def test_142_became_160_with_the_naive_prompt(host: Host, make_set: MakeSet) -> None:
    (host.root / NAME).write_text("\n".join(source(142)) + "\n")
    working_set = make_set()
    host.read(NAME)
    refactor(host, by_agent=True)
    patches = play(host, lambda: working_set.assemble(host.log).messages)
    assert patches
    assert all("rejected: hunk #1 failed at line 142. Found 'void flush_queue" in made for made in patches)


def test_142_became_160_and_is_read_anew_before_the_patch(host: Host, make_set: MakeSet) -> None:
    """The host knows which file the next action needs: the model never has to ask."""
    (host.root / NAME).write_text("\n".join(source(142)) + "\n")
    settler = settler_for(make_set(), host, Treatment.TAIL)
    host.read(NAME)
    refactor(host, by_agent=False)
    needed = [str(host.root / NAME)]
    settled = settler.before_call(host.log, host.invalidator, needed=needed)
    text = "\n".join(str(m["content"]) for m in settled.context.messages)
    assert list(settled.refreshed) == needed
    assert text.count("int dispatch_packet") == 2
    assert "now #" in text


PORT_TASK = "Make tests/test_auth.py pass."


def port_model(messages: Messages) -> str:
    """Runs the tests on the port that the newest trustworthy view of the settings names; else it reads them."""
    text = "\n".join(str(message["content"]) for message in messages)
    stale = {int(number) for number in re.findall(r"^\[stale #(\d+):", text, re.M)}
    views = re.findall(r"<(?:observation|artifact) [^>]*event=\"(\d+)\">\n(.*?)\n</", text, re.S)
    for seq, body in reversed(views):
        found = re.search(r"port = (\d+)", body)
        if found and int(seq) not in stale:
            return f"pytest tests/test_auth.py --db-port={found[1]}"
    return "read settings"


def run_tests(command: str, settings: Path) -> tuple[str, int]:
    """The database listens where the settings say; all else is refused."""
    port = command.rpartition("=")[2]
    if f"port = {port}" in settings.read_text():
        return "1 passed", 0
    return f"FAILED tests/test_auth.py - Connection refused: localhost:{port}", 1


def test_the_port_that_became_5433(tmp_path: Path, make_set: MakeSet) -> None:
    """The settings are read, somebody moves the database; the naive agent tries 5432 for ever."""

    def story(prompt_of: Callable[[EventLog, Invalidator, WorkingSet], Messages]) -> list[int]:
        settings = tmp_path / "db.toml"
        settings.write_text("port = 5432\n")
        log = EventLog.memory()
        record.user(log, PORT_TASK)
        host, working_set = Host(tmp_path, log, Invalidator(log)), make_set()
        host.read("db.toml")
        settings.write_text("port = 5433\n")
        codes: list[int] = []
        for _ in range(4):
            command = port_model(prompt_of(log, host.invalidator, working_set))
            if command == "read settings":
                host.read("db.toml")
            else:
                output, code = run_tests(command, settings)
                host.run(command, output, code)
                codes.append(code)
                if code == 0:
                    break
        return codes

    assert story(lambda log, _, working_set: working_set.assemble(log).messages) == [1, 1, 1, 1]
    ours = story(
        lambda log, known, ws: Settler(ws, root=str(tmp_path)).before_call(log, known).context.messages
    )
    assert ours == [0]
