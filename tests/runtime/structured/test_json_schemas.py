"""Whatever a model would like to write: what it writes under a schema validates against it."""

import json

import jsonschema
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammars

from .schema_strategies import Schema, schemas
from .vocabulary import make_backend, write

_BACKEND = make_backend()
_GRAMMARS = OutputGrammars({}, ReplyFormat(HERMES, None))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas(), st.integers(0, 2**32))
def test_outputs_validate(schema: Schema, seed: int) -> None:
    grammar = _GRAMMARS.make(StructuredOutputs(json=schema))
    assert grammar is not None
    outputs = [write(_BACKEND, grammar.text, seed + i) for i in range(3)]
    note(repr(outputs))
    whole = [output for output in outputs if output is not None]
    assume(whole)  # nearly always; the health check fails if it is not
    for output in whole:
        jsonschema.validate(json.loads(output), schema, cls=jsonschema.Draft202012Validator)
