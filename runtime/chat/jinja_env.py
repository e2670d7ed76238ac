"""The sandbox in which chat templates run, with the filters and functions that Hugging Face templates rely on."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deeproot.runtime.chat.errors import TemplateError

Environment = TypeVar("Environment", bound=ImmutableSandboxedEnvironment)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model said, for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which models have not been trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(f"the model's chat template refuses this conversation: {message}")


def make_environment(now: Callable[[], datetime], kind: type[Environment]) -> Environment:
    """A fresh environment. `now`: the clock behind `strftime_now`. `kind`: jinja2's sandbox, or one that does more."""
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def compile_template(
    environment: ImmutableSandboxedEnvironment, source: str
) -> tuple[jinja2.Template, nodes.Template]:
    """The template and its syntax tree; TemplateError, with the line, if it is not valid Jinja."""
    try:
        return environment.from_string(source), environment.parse(source)
    except jinja2.TemplateSyntaxError as fault:
        raise TemplateError(
            f"the chat template is not valid Jinja (line {fault.lineno}: {fault.message}); "
            "give another with --chat-template"
        ) from fault
    except RecursionError:
        raise TemplateError(
            "the chat template is nested too deeply; give another with --chat-template"
        ) from None
