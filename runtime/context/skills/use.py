"""Using a skill: its body is appended to the log once, where it was chosen, and stays there."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from deeproot.runtime.context.calls import arguments_of
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.skills.skill import Skill

NAME = "use_skill"
PART = "skill"
"""Of the events that hold a body."""
SKILL_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Brings the instructions of a skill into the conversation.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "as the list of skills has it"}},
            "required": ["name"],
        },
    },
}


def used(log: EventLog) -> dict[str, int]:
    """The skills whose bodies are in the log, and the events that have them."""
    return {
        str(event.data.get("name", "")): event.seq
        for event in log.read()
        if event.kind is EventKind.INSTRUCTION and event.data.get("part") == PART
    }


def use(log: EventLog, skill: Skill) -> int:
    """Append a skill's body, if it is not there yet: the event that has it. For a skill that the user or the host chose."""
    known = used(log).get(skill.name)
    return log.extend([_body(skill)])[0].seq if known is None else known


def answer(log: EventLog, call_id: str, call: Mapping[str, Any], skills: Sequence[Skill]) -> int:
    """Answer a call of `use_skill` and append the body behind the result, the first time; the result's event.

    `call`: `{"name", "arguments"}`.
    """
    return log.extend(answer_events(call_id, call, skills, used(log)))[0].seq


def answer_events(
    call_id: str, call: Mapping[str, Any], skills: Sequence[Skill], known: Collection[str]
) -> list[NewEvent]:
    """What `answer` appends. `known`: names of the skills whose bodies are there."""
    given = arguments_of(call)
    wanted = given.get("name") if isinstance(given, Mapping) else None
    by_name = {skill.name: skill for skill in skills}
    skill = by_name.get(wanted) if isinstance(wanted, str) else None
    told = {"role": "tool", "message": {"name": NAME}}
    if skill is None:
        names = ", ".join(sorted(by_name)) or "there are none"
        words = f"error: there is no skill {wanted!r}; give one of: {names}"
        return [NewEvent(EventKind.TOOL_RESULT, words, told, call_id, 1)]
    if skill.name in known:
        words = f"The instructions of {skill.name} stand above already; they hold."
        return [NewEvent(EventKind.TOOL_RESULT, words, told, call_id, 0)]
    words = f"The instructions of {skill.name} follow."
    return [NewEvent(EventKind.TOOL_RESULT, words, told, call_id, 0), _body(skill)]


def _body(skill: Skill) -> NewEvent:
    data = {"role": "user", "part": PART, "name": skill.name, "uri": f"skill://{skill.name}", "anchor": True}
    return NewEvent(EventKind.INSTRUCTION, skill.body, data)
