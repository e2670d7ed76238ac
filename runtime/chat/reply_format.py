"""How a model writes its replies: the format of its calls and of its reasoning, by template or by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.chat.call_parser import CallParser, schemas_of
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.formats.registry import (
    REASONING_ALIASES,
    REASONING_FORMATS,
    TOOL_ALIASES,
    TOOL_FORMATS,
    reasoning_format_named,
    reasoning_format_of,
    tool_format_named,
    tool_format_of,
)
from deeproot.runtime.chat.formats.tool_format import ToolFormat
from deeproot.runtime.chat.reasoning import ReasoningFormat, ReasoningParser
from deeproot.runtime.chat.reply_events import CallIds, ReplyEvent
from deeproot.runtime.chat.reply_parser import ReplyParser
from deeproot.runtime.chat.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """See the module."""

    tools: ToolFormat
    reasoning: ReasoningFormat | None
    """None: reasoning, if there is any, stays in the content."""

    @property
    def summary(self) -> str:
        """`tool calls as hermes, reasoning as think`"""
        reasoning = self.reasoning.name if self.reasoning is not None else "none"
        return f"tool calls as {self.tools.name}, reasoning as {reasoning}"

    def parser(
        self,
        prompt: str,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        separate_reasoning: bool = True,
        call_ids: CallIds | None = None,
    ) -> ReplyParser:
        """A parser of the reply to a rendered prompt. `tools`: those that may be called, in OpenAI's form; without
        any, what looks like a call is content."""
        reasoning = None
        if self.reasoning is not None and separate_reasoning:
            reasoning = self._reasoning_parser(self.reasoning, prompt, has_tools=bool(tools))
        calls = CallParser(self.tools, schemas_of(tools), call_ids) if tools else None
        return ReplyParser(reasoning, calls)

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that the format puts around or into reasoning and calls."""
        own = (self.reasoning.opening, self.reasoning.closing) if self.reasoning is not None else ()
        return own + self.tools.marks

    def read(self, prompt: str, reply: str) -> list[ReplyEvent]:
        """The events of a whole reply to a rendered prompt; calls have an empty id if the format gives them none."""
        reasoning = None
        if self.reasoning is not None:
            reasoning = self._reasoning_parser(self.reasoning, prompt, has_tools=True)
        parser = ReplyParser(reasoning, CallParser(self.tools, call_ids=str))
        return [*parser.feed(reply), *parser.finish()]

    def _reasoning_parser(
        self, reasoning: ReasoningFormat, prompt: str, *, has_tools: bool
    ) -> ReasoningParser:
        ends = self.tools.openings if has_tools and self.tools.ends_reasoning else ()
        return ReasoningParser(reasoning, opened=reasoning.opened_by(prompt), ends=ends)


def reply_format(
    template: ChatTemplate | None, tool_call_parser: str | None = None, reasoning_parser: str | None = None
) -> ReplyFormat:
    """What a template says, unless a name says otherwise. ValueError, with the names there are, for an unknown one."""
    # Where the template knows no tools, the built-in wrapper asks for calls in Hermes form.
    tools = tool_format_of(template.tool_source) if template is not None and template.has_tools else HERMES
    reasoning = reasoning_format_of(template.tool_source) if template is not None else None
    if tool_call_parser is not None:
        try:
            tools = tool_format_named(tool_call_parser)
        except KeyError:
            raise _unknown("--tool-call-parser", tool_call_parser, [*TOOL_FORMATS, *TOOL_ALIASES]) from None
    if reasoning_parser is not None:
        try:
            reasoning = reasoning_format_named(reasoning_parser)
        except KeyError:
            names = [*REASONING_FORMATS, *REASONING_ALIASES]
            raise _unknown("--reasoning-parser", reasoning_parser, names) from None
    return ReplyFormat(tools, reasoning)


def _unknown(flag: str, name: str, known: list[str]) -> ValueError:
    return ValueError(f"{flag} {name} is not known: leave it out, or give one of {', '.join(sorted(known))}")
