"""Questions about long prompts whose right answers are known: needles, counting, a rule, a state that changes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

CHARS_A_TOKEN = 4
"""By which lengths are made; what the prompts really have is said by the server."""
_WORKERS = ("ada", "bo", "cleo", "dag", "emil", "fay", "gus", "hal")
_PLACES = ("harbour", "quarry", "orchard", "foundry", "library", "bakery", "mill", "depot", "chapel", "ferry")
_STATES = ("open", "closed", "stuck")
_WORD = "MARBLE"
_NEEDLES = 3
_EVENTS = 7


class Task(StrEnum):
    """What is asked."""

    NEEDLE = "one needle"
    NEEDLES = "three needles"
    CHAIN = "related needles"
    COUNT = "counting"
    RULE = "rule"
    STATE = "state"


WITH_STATUS = (Task.COUNT, Task.RULE, Task.STATE)
"""Tasks that are also asked with a status bar at the end of the prompt, which says what the log adds up to."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A question. `tokens`: about how long the prompt is; `depth`: where the needle lies, 0 at the start, 1 at the end.

    The answer is right if it has all of `wanted` as words; `first`: the word with which it must begin ("": any).
    """

    task: Task
    tokens: int
    depth: float
    status: bool
    prompt: str
    wanted: tuple[str, ...]
    first: str = ""

    def passed(self, answer: str) -> bool:
        """Whether an answer is right."""
        words = "".join(c.lower() if c.isalnum() else " " for c in answer).split()
        begins = not self.first or words[:1] == [self.first.lower()]
        return begins and all(word.lower() in words for word in self.wanted)


def make_probes(lengths: Sequence[int], depths: Sequence[float], seed: int, repeats: int) -> list[Probe]:
    """Every task at every length and depth, with and without a status bar where that says something."""
    made = []
    for tokens in lengths:
        for depth in depths:
            for task in Task:
                for i in range(repeats):
                    rng = random.Random(f"{seed} {tokens} {depth} {task} {i}")
                    made.append(_probe(task, tokens, depth, rng, status=False))
                    if task in WITH_STATUS:
                        rng = random.Random(f"{seed} {tokens} {depth} {task} {i}")
                        made.append(_probe(task, tokens, depth, rng, status=True))
    return made


def _probe(task: Task, tokens: int, depth: float, rng: random.Random, *, status: bool) -> Probe:
    head, needles, question, bar, wanted, first = _KINDS[task](rng)
    end = f"\n\n<agent_status>\n{bar}\n</agent_status>" if status else ""
    fixed = "\n".join([head, *needles, question, end])
    lines = _filler(rng, max(0, tokens * CHARS_A_TOKEN - len(fixed)))
    for place, needle in zip(_places(len(lines), len(needles), depth), needles, strict=True):
        lines.insert(place, needle)
    body = "\n".join(lines)
    return Probe(task, tokens, depth, status, f"{head}\n\n{body}{end}\n\n{question}", wanted, first)


def _places(lines: int, needles: int, depth: float) -> list[int]:
    """Ascending places: one needle at the depth, several spread over the log and moved by it."""
    if needles == 1:
        return [round(depth * lines)]
    step = lines / needles
    return [min(lines, round(i * step + depth * max(0.0, step - 1))) + i for i in range(needles)]


def _filler(rng: random.Random, chars: int) -> list[str]:
    lines: list[str] = []
    while chars > 0:
        worker, batch = rng.choice(_WORKERS), rng.randrange(100, 1000)
        lines.append(f"{worker} finished batch {batch} in {rng.randrange(2, 60)} minutes.")
        chars -= len(lines[-1]) + 1
    return lines


_Kind = tuple[str, list[str], str, str, tuple[str, ...], str]
_HEAD = "Here is a log. Read it and answer the question at its end."


def _needle(rng: random.Random) -> _Kind:
    place, code = rng.choice(_PLACES), str(rng.randrange(10_000, 99_999))
    question = f"What is the code of the {place}? Answer with the number only."
    return _HEAD, [f"The code of the {place} is {code}."], question, "", (code,), ""


def _needles(rng: random.Random) -> _Kind:
    places = rng.sample(_PLACES, _NEEDLES)
    codes = [str(rng.randrange(10_000, 99_999)) for _ in places]
    lines = [f"The code of the {place} is {code}." for place, code in zip(places, codes, strict=True)]
    asked = ", the ".join(places)
    return (
        _HEAD,
        lines,
        f"What are the codes of the {asked}? Answer with the numbers only.",
        "",
        tuple(codes),
        "",
    )


def _chain(rng: random.Random) -> _Kind:
    first, second, third = rng.sample(_PLACES, 3)
    code = str(rng.randrange(10_000, 99_999))
    lines = [
        f"The {first} has the same code as the {second}.",
        f"The {second} has the same code as the {third}.",
        f"The code of the {third} is {code}.",
    ]
    rng.shuffle(lines)
    return _HEAD, lines, f"What is the code of the {first}? Answer with the number only.", "", (code,), ""


def _count(rng: random.Random) -> _Kind:
    number = rng.randrange(2, _EVENTS + 1)
    lines = [f"Alarm {rng.randrange(100, 999)} rang at the {rng.choice(_PLACES)}." for _ in range(number)]
    question = "How many alarms rang? Answer with the number only."
    return _HEAD, lines, question, f"alarms so far: {number}", (str(number),), ""


def _rule(rng: random.Random) -> _Kind:
    place, code = rng.choice(_PLACES), str(rng.randrange(10_000, 99_999))
    head = f"{_HEAD} Rule: every answer begins with the word {_WORD}."
    question = f"What is the code of the {place}?"
    bar = f"rule: every answer begins with the word {_WORD}"
    return head, [f"The code of the {place} is {code}."], question, bar, (code,), _WORD


def _state(rng: random.Random) -> _Kind:
    states = [rng.choice(_STATES)]
    while len(states) < _EVENTS:
        states.append(rng.choice([state for state in _STATES if state != states[-1]]))
    lines = [f"The valve is now {state}." for state in states]
    question = "Is the valve open, closed or stuck now? Answer with one word."
    return _HEAD, lines, question, f"valve: {states[-1]}", (states[-1],), states[-1]


_KINDS = {
    Task.NEEDLE: _needle,
    Task.NEEDLES: _needles,
    Task.CHAIN: _chain,
    Task.COUNT: _count,
    Task.RULE: _rule,
    Task.STATE: _state,
}
