"""Says what is wrong with a grammar before a request takes its place in the queue."""

import json
import re
import threading
from collections import OrderedDict
from typing import Any

from blake3 import blake3
from llguidance import LLMatcher

from deeproot.engine.grammar_llguidance import first_line, parser_limits
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.options import JsonSchema
from deeproot.runtime.structured.schemas import Path, dotted, subschemas

_MAX_REMEMBERED = 4096


class GrammarCheck:
    """Compiles without a vocabulary, which is quick and needs no engine; the engine compiles anew, with its own.

    Remembers its latest verdicts, since agents send the same tools with every turn. May be used by several threads.
    """

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def schema(self, schema: JsonSchema, field: str) -> None:
        """Raise OptionError, naming the place in the schema, if it cannot be compiled."""
        problem = self._problem(_grammar_of(schema))
        if problem is not None:
            path = dotted(_place(schema, problem))
            raise OptionError(field, f"{field}{path} cannot be enforced: {problem}.")

    def grammar(self, grammar: str, field: str) -> None:
        """Raise OptionError if a whole grammar cannot be compiled."""
        problem = self._problem(grammar)
        if problem is not None:
            raise OptionError(field, f"{field} cannot be enforced: {problem}.")

    def _problem(self, grammar: str) -> str | None:
        key = blake3(grammar.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        verdict = _validate(grammar)
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > _MAX_REMEMBERED:
                self._verdicts.popitem(last=False)
        return verdict


def _validate(grammar: str) -> str | None:
    """What is wrong, in a few words, or None."""
    try:
        problem = LLMatcher.validate_grammar(grammar, limits=parser_limits())
    except UnicodeEncodeError:
        return "it holds half of a surrogate pair, which no UTF-8 text can"
    return _bare(problem) if problem else None


def _bare(problem: str) -> str:
    """The library's message without its place in a grammar that the caller has not written."""
    line = re.sub(r"^at \d+\(\d+\): ", "", first_line(problem)).removeprefix(
        "failed to compile JSON schema: "
    )
    if line.endswith("parse error:"):  # the pattern follows, and then what is wrong with it
        reason = next((part for part in problem.splitlines() if part.strip().startswith("error: ")), line)
        line = f"{line.rstrip(':')}: {reason.strip().removeprefix('error: ')}"
    if "coerce_one_of" in line:  # a setting of the library's that callers do not have
        line = "oneOf with alternatives that may overlap: use anyOf, or give each another type or constant"
    return line.rstrip(".")


def _place(schema: JsonSchema, problem: str) -> Path:
    """The innermost schema that has this problem on its own."""
    if isinstance(schema, bool):
        return ()
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    path: Path = ()
    descending = True
    while descending:
        descending = False
        for step, inner in subschemas(schema):
            if _validate(_grammar_of({**shared, **inner})) == problem:
                path, schema, descending = path + step, inner, True
                break
    return path


def _grammar_of(schema: JsonSchema) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema))
