"""A model's chat template: messages and tools to a prompt."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from deeproot.runtime.chat import builtin_tools
from deeproot.runtime.chat.control_guard import ControlGuard, Rendering, Transform, transformed
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.kept_thinking import with_reasoning_in_content, with_thinking
from deeproot.runtime.chat.messages import (
    Message,
    checked_messages,
    text_of_content,
    with_joined_content,
    with_parsed_arguments,
)
from deeproot.runtime.chat.open_end import cut_at_open_end, with_open_end
from deeproot.runtime.chat.template_programs import LocalTemplates, TemplateFacts, TemplateProgram, Templates
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer

_MODEL_WORDS = frozenset({"content", "reasoning_content", "reasoning", "thinking"})
"""Fields of an assistant message that the model wrote as text."""
_PROBE = "probe of the system turn"


class ChatTemplate:
    """Renders conversations as transformers' `apply_chat_template` does, for any model.

    Beyond that: tools work where the template knows none (see `builtin_tools`), a system message works where the
    template has no place for one (it opens the first user turn), a developer message is a system message unless the
    template knows the role, reasoning that comes apart stands in the content where the template looks for it only there,
    and text that spells a control token stays text (see `control_guard`).
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        now: Callable[[], datetime] = datetime.now,
        keep_thinking: bool = False,
        programs: Templates | None = None,
    ) -> None:
        """`source`: Jinja text, or several by name, of which `tool_use` serves requests with tools and `default` the
        others. `now`: the clock that templates see. `keep_thinking`: see `kept_thinking`.
        `programs`: who runs the source; None: this process. TemplateError if the source is not valid Jinja."""
        programs = programs or LocalTemplates()
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in sources:
            raise TemplateError(
                f"the model has chat templates named {', '.join(sorted(sources)) or 'nothing'} but none named "
                "'default'; give one with --chat-template"
            )
        self._default = programs.compile(sources["default"], now)
        has_another = "tool_use" in sources
        self._for_tools = programs.compile(sources["tool_use"], now) if has_another else self._default
        self._sources = sources
        self._programs = programs
        self._keep_thinking = keep_thinking
        self._special_texts = tokenizer.special_texts
        self._tokenizer = tokenizer
        self.guard = ControlGuard(tokenizer, self._control_ids())
        self._has_system_turn = self._shows_system_message()

    @property
    def has_tools(self) -> bool:
        """Whether the model's own template renders tools; if not, the built-in wrapper does."""
        return self._for_tools.facts.uses_tools

    @property
    def tool_source(self) -> str:
        """The Jinja source that serves requests with tools."""
        return self._sources.get("tool_use", self._sources["default"])

    def with_clock(self, now: Callable[[], datetime]) -> "ChatTemplate":
        """The same template at another time."""
        return ChatTemplate(
            self._sources,
            self._tokenizer,
            now=now,
            keep_thinking=self._keep_thinking,
            programs=self._programs,
        )

    def check(self, messages: Sequence[Mapping[str, Any]], *, with_tools: bool) -> None:
        """TemplateError if a message is malformed."""
        program = self._for_tools if with_tools else self._default
        checked_messages(messages, other_roles=_roles_in(program))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The prompt as text; TemplateError if a message is malformed or the template refuses."""
        return self._renderer(messages, tools, add_generation_prompt, template_kwargs)(_same)

    def token_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> Int32Array:
        """`[num_tokens]` ids of the prompt. Control tokens come from the template only, never from the content."""
        return self.guard.encode(self._renderer(messages, tools, add_generation_prompt, template_kwargs))

    def rendering(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> Rendering:
        """The prompt before it is tokenised, for `guard`. TemplateError as in `render`.

        `continue_final_message`: end it inside the last message, so that the model goes on with that;
        `add_generation_prompt` must be False then.
        """
        if not continue_final_message:
            return self.guard.rendering(
                self._renderer(messages, tools, add_generation_prompt, template_kwargs)
            )
        opened = with_open_end(messages)
        return cut_at_open_end(self.guard.rendering(self._renderer(opened, tools, False, template_kwargs)))

    def _renderer(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> Callable[[Transform], str]:
        """Check the conversation once; what returns renders it with its strings transformed."""
        program = self._for_tools if tools else self._default
        checked = checked_messages(messages, other_roles=_roles_in(program))
        described = [_checked_tool(tool, i) for i, tool in enumerate(tools or ())]
        arranged = self._arranged(checked, program.facts)
        if program.facts.uses_tools:
            arranged = with_parsed_arguments(arranged)

        def render(transform: Transform) -> str:
            try:
                shown = [_transformed_message(message, transform) for message in arranged]
                shown_tools = transformed(described, transform, False)
                if not program.facts.uses_tools:
                    shown = builtin_tools.wrap(shown, shown_tools)
                if not self._has_system_turn:
                    shown = _with_system_in_first_user_turn(shown)
                variables = {
                    **self._special_texts,
                    **transformed(dict(template_kwargs), transform, False),
                    "tools": shown_tools or None,
                    "documents": None,
                }

                def run(turns: Sequence[Message], opening: bool) -> str:
                    listed = list(turns) if program.facts.takes_parts else with_joined_content(turns)
                    return program.render({**variables, "messages": listed, "add_generation_prompt": opening})

                if self._keep_thinking and add_generation_prompt:
                    return with_thinking(shown, run)
                return run(shown, add_generation_prompt)
            except RecursionError as fault:
                raise TemplateError(
                    "the messages or the tools are nested too deeply; make them flatter"
                ) from fault

        return render

    def _arranged(self, messages: list[Message], facts: TemplateFacts) -> list[Message]:
        if facts.thinks_in_content:
            messages = [with_reasoning_in_content(m) if m["role"] == "assistant" else m for m in messages]
        if "developer" in facts.literals:
            return messages
        return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]

    def _control_ids(self) -> set[int]:
        """Special tokens, and other added tokens that the template, or the built-in wrapper, writes itself."""
        facts = (self._default.facts, self._for_tools.facts)
        literals = "\0".join(part.literals for part in facts)
        if not all(part.uses_tools for part in facts):
            literals += "\0" + builtin_tools.LITERALS
        added = self._tokenizer.added
        return {e.token_id for e in added if e.special or (_is_mark(e.text) and e.text in literals)}

    def _shows_system_message(self) -> bool:
        """Whether the template accepts a system message and shows it."""
        messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "a"}]
        variables = {
            **self._special_texts,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return _PROBE in self._default.render(variables)
        except TemplateError:
            return False


def _is_mark(text: str) -> bool:
    """Whether an added token could open or close something: runs of spaces and the like are added tokens too."""
    return len(text) > 2 and not text.isspace() and not text.isalnum()


def _transformed_message(message: Message, transform: Transform) -> Message:
    by_model = _MODEL_WORDS if message["role"] == "assistant" else frozenset()
    return {key: transformed(value, transform, key in by_model) for key, value in message.items()}


def _same(text: str, by_model: bool) -> str:
    return text


def _checked_tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(
            'expected an object like {"type": "function", "function": {"name": …, "parameters": …}}',
            field=f"tools[{index}]",
        )
    return dict(tool)


def _with_system_in_first_user_turn(messages: list[Message]) -> list[Message]:
    """System messages at the start, in front of the first user message's own text."""
    leading = [text_of_content(m["content"]) for m in itertools.takewhile(_is_system, messages)]
    rest = messages[len(leading) :]
    if not leading:
        return rest
    if rest and rest[0]["role"] == "user":
        text = "\n\n".join([*leading, text_of_content(rest[0]["content"])])
        return [{**rest[0], "content": text}, *rest[1:]]
    return [{"role": "user", "content": "\n\n".join(leading)}, *rest]


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")


def _roles_in(program: TemplateProgram) -> frozenset[str]:
    """Roles beside the usual that a template speaks of: any constant that is one lower-case word."""
    return frozenset(word for word in program.facts.literals.split("\0") if word.isalpha() and word.islower())
