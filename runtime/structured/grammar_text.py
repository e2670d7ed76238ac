"""Writes grammars in llguidance's Lark."""

import json
import re
from collections.abc import Mapping

from llguidance import regex_to_lark

from deeproot.engine.grammar_llguidance import NO_FORCING
from deeproot.runtime.structured.options import JsonSchema, StructuredOutputs

ANY_TEXT = "ANY_TEXT"
"""Terminal that stands for any text, the empty one too, in every grammar that asks for it."""

# A line break with its indent, or a space or two. Without a bound, a weak model that has begun to write white space
# goes on with it until its tokens are used up.
_WHITE_SPACE = r"\n[ \t]{0,40}|[ \t]{1,2}"
_JSON_SETTINGS = {"whitespace_pattern": _WHITE_SPACE, "lenient": False, "coerce_one_of": False}
_JSON_OBJECT: JsonSchema = {"type": "object"}


class GrammarText:
    """A grammar in the making. The rule `start` must be added once; what it refers to may be added in any order."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special`: spelling and id of the control tokens, which no text can stand for."""
        self._special = special
        self._spellings = re.compile(
            "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
        )
        self._rules: dict[str, str] = {}
        self._parts: list[dict[str, str]] = []

    def rule(self, name: str, body: str) -> str:
        """Add a rule; returns its name. Names are in lower case, those of terminals in upper case."""
        self._rules[name] = body
        return name

    def has(self, name: str) -> bool:
        """Whether there is a rule of that name."""
        return name in self._rules

    def literal(self, text: str) -> str:
        """This very text; control tokens spelt in it are those tokens. Nothing for no text."""
        words, at = [], 0
        for found in self._spellings.finditer(text):
            words += [_quoted(text[at : found.start()]), f"<[{self._special[found[0]]}]>"]
            at = found.end()
        words.append(_quoted(text[at:]))
        return " ".join(word for word in words if word)

    def json(self, schema: JsonSchema) -> str:
        """JSON that validates against `schema`, which has passed `checked_schema`."""
        if isinstance(schema, bool):
            # Not the bare word: the library would read what follows it, too.
            schema = {} if schema else {"enum": []}
        return f"%json {json.dumps({**schema, 'x-guidance': _JSON_SETTINGS})}"

    def regex(self, pattern: str, ascii_classes: str = "") -> str:
        """Text that the whole pattern matches. `ascii_classes`: letters of the classes (`\\d`, `\\w`) that are ASCII's."""
        return f"/{regex_to_lark(_unanchored(pattern), ascii_classes)}/"

    def part(self, name: str, grammar: str) -> str:
        """A whole Lark grammar of its own."""
        self._parts.append({"name": name, "lark_grammar": NO_FORCING + grammar})
        return f"@{name}"

    def any_text(self) -> str:
        """Any text without control tokens, the empty one too."""
        return self.rule(ANY_TEXT, "/(?s:.*)/")

    def up_to(self, name: str, mark: str) -> str:
        """A rule `name`: any text and then `mark`, which ends it where it first appears."""
        if mark in self._special:
            return self.rule(name, f"{self.any_text()} {self.literal(mark)}")
        return self.rule(f"{name}[lazy]", f"{self.any_text()} {_quoted(mark)}").removesuffix("[lazy]")

    def text_before(self, name: str, text: str, ending: str, mark: str) -> str:
        """A terminal's expression `text`, which must rule out `mark`, and then `ending`, which has `mark` in it."""
        before, after = ending.split(mark)
        # In one terminal: it would go on over the ending else, and can end only where no more of it can come.
        if mark not in self._special:
            return self.rule(name.upper(), f"({text}) {_quoted(ending)}")
        terminal = self.rule(name.upper(), f"({text}) {_quoted(before)}")
        return f"{terminal} {self.literal(mark + after)}"

    def __str__(self) -> str:
        lark = NO_FORCING + "".join(f"{name}: {body}\n" for name, body in self._rules.items())
        if not self._parts:
            return lark
        return json.dumps({"grammars": [{"name": "whole", "lark_grammar": lark}, *self._parts]})


def add_structure(grammar: GrammarText, wanted: StructuredOutputs) -> str:
    """Add what `wanted` says; returns the expression that stands for it."""
    if wanted.regex is not None:
        return grammar.regex(wanted.regex)
    if wanted.choice is not None:
        return grammar.rule("choice", " | ".join(_quoted(text) for text in wanted.choice))
    if wanted.grammar is not None:
        return grammar.part("given", wanted.grammar)
    return grammar.json(_JSON_OBJECT if wanted.json is None else wanted.json)


def _unanchored(pattern: str) -> str:
    """Without the anchors around the whole: it must match the whole text anyway."""
    pattern = pattern.removeprefix("^")
    ends = pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1
    return pattern[:-1] if ends else pattern


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""
