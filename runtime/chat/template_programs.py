"""Jinja sources as programs: what their syntax tree tells, and how they are run.

`ChatTemplate` needs no more of Jinja than `Templates`. `LocalTemplates` runs them in this process;
`template_processes.TemplateProcesses` in a process of its own, which a template can neither hold up nor take along.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.jinja_env import compile_template, make_environment
from deeproot.runtime.chat.messages import REASONING_NAMES

_MAX_FAULT_CHARS = 500


class TemplateFacts(msgspec.Struct, frozen=True):
    """What the syntax tree of a template tells."""

    uses_tools: bool
    takes_parts: bool
    """Whether it goes through the parts of a message's content."""
    literals: str
    """Every piece of text that could reach the output, with zeros between."""
    thinks_in_content: bool
    """Whether it looks for reasoning in the content only."""


class TemplateProgram(Protocol):
    """One compiled source."""

    facts: TemplateFacts

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. variables: JSON-like. Raises TemplateError, or RecursionError if they are nested too deeply."""
        ...


class Templates(Protocol):
    """Compiles sources."""

    def compile(self, source: str, now: Callable[[], datetime]) -> TemplateProgram:
        """now: the clock that the template sees. Raises TemplateError if `source` is no valid Jinja."""
        ...


class LocalTemplates:
    """Runs templates in this process, in jinja2's sandbox and without a limit of time."""

    def compile(self, source: str, now: Callable[[], datetime]) -> "LocalProgram":
        return LocalProgram(source, now)


class LocalProgram:
    """A template that runs in this process."""

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        environment = make_environment(now, ImmutableSandboxedEnvironment)
        self._template, tree = compile_template(environment, source)
        self.facts = _facts_of(tree)

    def render(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._template.render(variables)
        except (TemplateError, RecursionError):
            raise
        except Exception as fault:  # a template is a program of somebody else's: anything may happen in it
            raise run_fault(fault) from fault


def run_fault(error: Exception) -> TemplateError:
    """The error of a template in which another was raised."""
    return template_fault(f"{type(error).__name__}: {str(error)[:_MAX_FAULT_CHARS]}")


def template_fault(what: str) -> TemplateError:
    """The error of a template that failed while it ran."""
    return TemplateError(
        f"the model's chat template failed on this conversation ({what}); "
        "check the messages, or give another template with --chat-template"
    )


def _facts_of(tree: nodes.Template) -> TemplateFacts:
    literals = "\0".join(_literals(tree))
    fields = {node.attr for node in tree.find_all(nodes.Getattr)}
    fields |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return TemplateFacts(
        uses_tools="tools" in find_undeclared_variables(tree),
        takes_parts=any(_named(loop.iter, "content") for loop in tree.find_all(nodes.For)),
        literals=literals,
        thinks_in_content="</think>" in literals and fields.isdisjoint(REASONING_NAMES),
    )


def _named(node: nodes.Node, name: str) -> bool:
    """Whether an expression is a variable, attribute or item of that name."""
    if isinstance(node, nodes.Name):
        return node.name == name
    if isinstance(node, nodes.Getattr):
        return node.attr == name
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == name


def _literals(tree: nodes.Template) -> Iterator[str]:
    """Every piece of text in a template that could reach its output."""
    for data in tree.find_all(nodes.TemplateData):
        yield data.data
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            yield constant.value
