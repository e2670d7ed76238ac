"""A model's chat template, rendered so that each character is known to be the template's or one message's."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.context.span_processes import RemoteSpans
from deeproot.runtime.context.span_programs import LocalSpans, Prepared, SpanProgram
from deeproot.runtime.context.spans import ChatMessage, Span
from deeproot.runtime.options import TEMPLATE_TIMEOUT_S

GENERIC = (
    "{% for message in messages %}{{ message.role + ':\\n' }}{% if message.content %}{{ message.content + '\\n' }}"
    "{% endif %}{% for call in message.tool_calls or [] %}{{ call | tojson }}{{ '\\n' }}{% endfor %}{{ '\\n' }}"
    "{% endfor %}{% if tools %}{{ 'tools:\\n' }}{{ tools | tojson }}{{ '\\n' }}{% endif %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)
"""A stand-in where the server's template is not known: its counts are estimates."""


def read_template(path: str | Path) -> "ChatTemplate":
    """A template in a file, which runs in a process of its own. Raises OSError, UnicodeDecodeError, TemplateError."""
    source = Path(path).read_text(encoding="utf-8")
    return ChatTemplate(source, processes=TemplateProcesses(TEMPLATE_TIMEOUT_S))


class ChatTemplate:
    """Compiled once, rendered for each call; holds no state between renderings."""

    def __init__(
        self,
        source: str,
        *,
        special_texts: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        processes: TemplateProcesses | None = None,
    ) -> None:
        """`special_texts`: what the template knows by name (`bos_token`, `eos_token`, …); they are its own words.
        `now`: the clock behind `strftime_now`. `processes`: where a source runs that nobody vouches for; None: in this
        process. Raises `TemplateError` if `source` is no valid Jinja."""
        self.source = source
        special = special_texts or {}
        self._program: SpanProgram = (
            LocalSpans(source, special, now)
            if processes is None
            else RemoteSpans(processes, source, special, now)
        )
        self.prepare = self._program.prepare
        self.prepare_tools = self._program.prepare_tools

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tools_segment: Hashable = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Span]:
        """The rendering as spans whose texts add up to it. Raises `TemplateError` if the template refuses."""
        return self.render_prepared(
            [self.prepare(message) for message in messages],
            tools=self.prepare_tools(tools, tools_segment),
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )

    def render_prepared(
        self,
        messages: Sequence[Prepared],
        *,
        tools: Prepared = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Span]:
        """See `render`. `messages`, `tools`: as `prepare` and `prepare_tools` have made them."""
        return self._program.render(messages, tools, add_generation_prompt, variables or {})
