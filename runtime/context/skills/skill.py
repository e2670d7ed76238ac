"""Skills: instructions for one kind of work, of which the prompt has only when to use them until they are used."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_LONGEST_NAME, _LONGEST = 64, 1024
_HEAD = (
    "Skills. When one fits what is to be done, call use_skill with its name before you begin; its instructions follow"
    " then and hold from there on."
)


class SkillError(ValueError):
    """A skill is not written as it must be. The message names the file and the field."""


@dataclass(frozen=True, slots=True)
class Skill:
    """`use_when`, `not_when`: conditions, not praise. `counter_examples`: requests that sound like it and are not."""

    name: str
    use_when: str
    body: str
    not_when: str = ""
    counter_examples: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """What the root says of it."""
        parts = [f"- {self.name}: {_sentence(self.use_when)}"]
        if self.not_when:
            parts.append(f"Not when: {_sentence(self.not_when)}")
        if self.counter_examples:
            parts.append("Not for: " + "; ".join(f'"{example}"' for example in self.counter_examples) + ".")
        return " ".join(parts)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Why a model may choose it wrongly."""
        made = [] if self.not_when else ["not_when is missing: say where it does not fit"]
        if not self.counter_examples:
            made.append(
                "counter_examples is missing: without any, a broad skill is used where it does not fit"
            )
        return tuple(f"{self.name}: {why}" for why in made)


def catalogue(skills: Sequence[Skill]) -> str:
    """What stands in the root, to be logged once as policy (`record.policy`); by name, so that no order moves a byte.

    Raises `SkillError` if two skills have one name. Empty for none.
    """
    names = [skill.name for skill in skills]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SkillError(f"two skills are named {twice[0]}; rename one")
    lines = [skill.line for skill in sorted(skills, key=lambda skill: skill.name)]
    return "\n".join([_HEAD, *lines]) if lines else ""


def load_skills(folder: str | Path) -> tuple[Skill, ...]:
    """The skills of a folder, one subfolder each with a `SKILL.md`, by name. Raises `SkillError`, OSError."""
    found = sorted(Path(folder).glob(f"*/{FILE}"))
    return tuple(sorted((read_skill(path) for path in found), key=lambda skill: skill.name))


def read_skill(path: Path) -> Skill:
    """One `SKILL.md`. Raises `SkillError`, OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SkillError(f"{path}: no UTF-8 at byte {error.start}; save it as UTF-8") from None
    return parse_skill(text, str(path))


def parse_skill(text: str, where: str) -> Skill:
    """A skill as text: YAML between two lines of `---`, then the instructions. `where`: named in errors.

    Fields: `name`, `use_when` (or `description`), `not_when`, `counter_examples` (a list). Others are left alone. Raises
    `SkillError`.
    """
    front = _FRONT.match(text)
    if front is None:
        raise SkillError(
            f"{where}: begins with no YAML between two lines of ---; write name and use_when there"
        )
    fields = _fields(front[1], where)
    name = _text(fields, "name", where, _LONGEST_NAME)
    if not _NAME.fullmatch(name):
        raise SkillError(f"{where}: name is {name!r}; give small letters, digits and single hyphens")
    use_when = _text(fields, "use_when" if "use_when" in fields else "description", where, _LONGEST)
    if not use_when:
        raise SkillError(f"{where}: use_when is missing; say in a sentence when the skill is to be used")
    body = text[front.end() :].strip()
    if not body:
        raise SkillError(f"{where}: has no instructions behind the second ---")
    examples = fields.get("counter_examples") or []
    if not isinstance(examples, list) or not all(isinstance(example, str) for example in examples):
        raise SkillError(
            f"{where}: counter_examples is no list of texts; give one a line, each behind a hyphen"
        )
    short = tuple(" ".join(example.split()) for example in examples)
    return Skill(name, use_when, body, _text(fields, "not_when", where, _LONGEST), short)


def _fields(text: str, where: str) -> Mapping[str, Any]:
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SkillError(
            f"{where}: the part between --- is no YAML ({' '.join(str(error).split())})"
        ) from None
    if not isinstance(fields, Mapping):
        raise SkillError(f"{where}: the part between --- has no fields; write name: and use_when:")
    return fields


def _text(fields: Mapping[str, Any], name: str, where: str, longest: int) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SkillError(f"{where}: {name} is {type(value).__name__}; give a text")
    value = " ".join(value.split())
    if len(value) > longest:
        raise SkillError(
            f"{where}: {name} has {len(value)} characters; give at most {longest}, every prompt has them"
        )
    return value


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
