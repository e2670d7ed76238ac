"""From what a caller asked of an output's form to the grammar that holds it to that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llguidance.gbnf_to_lark import gbnf_to_lark

from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.call_grammar import Calls, CallTool, add_calls, add_text_or_calls
from deeproot.runtime.structured.grammar_check import GrammarCheck
from deeproot.runtime.structured.grammar_text import GrammarText, add_structure
from deeproot.runtime.structured.options import JsonSchema, StructuredOutputs
from deeproot.runtime.structured.schemas import checked_schema

MAX_CHOICES = 4096
MAX_PATTERN_CHARS = 32 * 1024
MAX_GIVEN_GRAMMAR_CHARS = 128 * 1024
MAX_GRAMMAR_CHARS = 1024 * 1024
ToolChoice = str | Mapping[str, Any] | None
_ANY_ARGUMENTS: JsonSchema = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a caller said about tools."""

    tools: Sequence[Mapping[str, Any]]
    """In OpenAI's form."""
    choice: ToolChoice = None
    """`tool_choice`."""
    parallel: bool = True
    """`parallel_tool_calls`."""

    @property
    def callable(self) -> Sequence[Mapping[str, Any]]:
        """Tools whose calls are to be recognised. With `none` tools stay in the prompt, and so in the cache."""
        return () if self.choice == "none" else self.tools


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """What an output is held to."""

    text: str
    whole: bool
    """Whether an output is no good unless it is whole, as JSON is: then nothing but its own end may end it."""


class OutputGrammars:
    """Makes grammars for one vocabulary. May be used by several threads."""

    def __init__(self, special: Mapping[str, int], format: ReplyFormat) -> None:
        """`special`: spelling and id of the control tokens. `format`: how the model writes calls and reasoning."""
        self._special = special
        self._format = format
        self._check = GrammarCheck()

    def make(
        self,
        structure: StructuredOutputs | None = None,
        *,
        structure_field: str = "structured_outputs",
        tools: ToolUse | None = None,
        prompt: str | None = None,
    ) -> OutputGrammar | None:
        """The grammar of an output; None if everything is allowed.

        `structure` is what the text must be, where it is not calls; `structure_field` is what errors about it call
        it. `prompt`: of a chat, rendered, if reasoning may come first. Raises OptionError.
        """
        calls = None if tools is None else self._calls(tools, needed=structure is not None)
        if structure is None and calls is None:
            return None
        grammar = GrammarText(self._special)
        alternatives = []
        if structure is not None and (calls is None or calls.mode == "auto"):
            alternatives.append(add_structure(grammar, self._checked(structure, structure_field)))
        if calls is not None and (calls.mode == "required" or structure is not None):
            alternatives.append(add_calls(grammar, calls))
        elif calls is not None:
            alternatives.append(add_text_or_calls(grammar, calls))
        body = grammar.rule("body", " | ".join(alternatives))
        grammar.rule("start", self._after_reasoning(grammar, body, prompt))
        self._check_all(str(grammar), "tools" if calls is not None else structure_field)
        whole = calls is not None and calls.mode == "required"
        return OutputGrammar(str(grammar), whole or (structure is not None and structure.is_json))

    def _after_reasoning(self, grammar: GrammarText, body: str, prompt: str | None) -> str:
        reasoning = self._format.reasoning
        if reasoning is None or prompt is None:
            return body
        thought = f"{grammar.up_to('thought', reasoning.closing)} /[ \\n]{{0,4}}/"
        if reasoning.opened_by(prompt):
            return f"{thought} {body}"
        return f"({grammar.literal(reasoning.opening)} {thought})? {body}"

    def _check_all(self, grammar: str, field: str) -> None:
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise OptionError(
                field,
                f"All schemas together take {len(grammar)} characters, and at most {MAX_GRAMMAR_CHARS} do.",
            )
        self._check.grammar(grammar, field)

    def _calls(self, use: ToolUse, *, needed: bool) -> Calls | None:
        """The calls that a grammar must know of; None if it need not.

        Without `strict` in any tool and with free choice the model is left alone, unless its text is constrained
        (`needed`). If there is one, calls of the other tools may have any arguments.
        """
        name, mode = _chosen(use.choice)
        functions = [(i, tool["function"]) for i, tool in enumerate(use.tools)]
        if name is not None:
            functions = [(i, function) for i, function in functions if function["name"] == name]
            if not functions:
                raise OptionError("tool_choice", f"tool_choice names {name!r}, which is none of the tools.")
        if mode == "required" and not functions:
            raise OptionError("tool_choice", "tool_choice asks for a call: give tools that can be called.")
        if mode == "none" or not functions:
            return None
        if mode == "auto" and not needed and not any(_is_strict(function) for _, function in functions):
            return None
        given = tuple(
            CallTool(function["name"], self._arguments(function, i, forced=mode == "required"), _field_of(i))
            for i, function in functions
        )
        return Calls(self._format.tools, given, mode, several=use.parallel and name is None)

    def _arguments(self, function: Mapping[str, Any], index: int, forced: bool) -> JsonSchema:
        parameters = function.get("parameters")
        if parameters is None:
            return {"type": "object", "additionalProperties": False}
        if not forced and not _is_strict(function):
            return _ANY_ARGUMENTS
        field = _field_of(index)
        # Some clients leave the type out; arguments are an object in any case.
        schema = checked_schema({"type": "object", **parameters}, field)
        self._check.schema(schema, field)
        return schema

    def _checked(self, structure: StructuredOutputs, field: str) -> StructuredOutputs:
        if structure.json is not None:
            schema = checked_schema(structure.json, field)
            self._check.schema(schema, field)
            return StructuredOutputs(json=schema)
        if structure.regex is not None:
            _check_text(structure.regex, MAX_PATTERN_CHARS, field)
        if structure.choice is not None:
            _check_choices(structure.choice, field)
        if structure.grammar is not None:
            return StructuredOutputs(grammar=_as_lark(structure.grammar, field))
        return structure


def _field_of(index: int) -> str:
    return f"tools[{index}].function.parameters"


def _is_strict(function: Mapping[str, Any]) -> bool:
    return function.get("strict") is True


def _check_choices(choices: Sequence[str], field: str) -> None:
    if not choices or len(choices) > MAX_CHOICES:
        raise OptionError(field, f"{field} takes 1 to {MAX_CHOICES} texts, got {len(choices)}.")
    if not all(choices):
        raise OptionError(field, f"{field} holds an empty text: leave it out.")


def _check_text(text: str, max_chars: int, field: str) -> None:
    if len(text) > max_chars:
        raise OptionError(field, f"{field} has more than {max_chars} characters.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise OptionError(field, f"{field} holds half of a surrogate pair, which no text can have.")


def _as_lark(grammar: str, field: str) -> str:
    _check_text(grammar, MAX_GIVEN_GRAMMAR_CHARS, field)
    if "::=" not in grammar:
        return grammar
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # the library's parser fails in its own ways on what is no GBNF
        raise OptionError(field, f"{field} cannot be read as GBNF: {error}.") from None


def _chosen(tool_choice: ToolChoice) -> tuple[str | None, Literal["auto", "none", "required"]]:
    """The function that must be called, if one is named, and how free the model is."""
    match tool_choice:
        case None | "auto":
            return None, "auto"
        case "none":
            return None, "none"
        case "required":
            return None, "required"
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function":
        function = tool_choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else tool_choice.get("name")
        if isinstance(name, str):
            return name, "required"
    raise OptionError(
        "tool_choice",
        "tool_choice must be 'auto', 'none', 'required', or "
        '{"type": "function", "function": {"name": "…"}} with the name of a tool.',
    )
