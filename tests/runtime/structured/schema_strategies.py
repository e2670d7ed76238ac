"""Random JSON schemas of the kinds that callers write, with what JSON Schema says about objects, lists and scalars."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

Schema = dict[str, Any]

_NAMES = st.sampled_from(["a", "b", "city", "e-mail", "a b", 'q"t', "x/y", "ü", "type", "properties", ""])
_TEXTS = st.text(alphabet='ab"\\/é 😀\n', max_size=6)
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), _TEXTS)


@st.composite
def _integers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-50, 50))
    schema: Schema = {"type": "integer"}
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(st.integers(2, 200))
    return schema


@st.composite
def _numbers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-500, 500))
    schema: Schema = {"type": "number"}
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low / 10
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = (
            low + draw(st.integers(1, 300))
        ) / 10
    # Less than 1 apart and without a bound: refused if that bound is whole.
    narrow = max(schema.get(key, -100) for key in ("maximum", "exclusiveMaximum")) - low / 10 < 1
    assume(not (narrow and any(key.startswith("exclusive") for key in schema) and len(schema) == 3))
    return schema


@st.composite
def _strings(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "string"}
    if draw(st.booleans()):
        patterns = [
            "^[a-z]{2,5}$",
            "[0-9]",
            "^a|b$",
            "^\\d{3}-\\d{4}$",
            "^(red|green)$",
            "é",
            "^\\w+@\\w+$",
            '"',
        ]
        schema["pattern"] = draw(st.sampled_from(patterns))
        return schema
    if draw(st.booleans()):
        schema["minLength"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        schema["maxLength"] = draw(st.integers(3, 8))
    return schema


@st.composite
def _enums(draw: st.DrawFn) -> Schema:
    if draw(st.booleans()):
        return {"const": draw(st.one_of(_SCALARS, st.lists(_SCALARS, max_size=2)))}
    return {"enum": draw(st.lists(_SCALARS, min_size=1, max_size=4))}


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema: Schema = {"type": "array", "items": draw(inner)}
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 2))
    if draw(st.booleans()):
        schema["maxItems"] = draw(st.integers(2, 4))
    if draw(st.integers(0, 4)) == 0:
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    return schema


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(_NAMES, inner, max_size=4))
    schema: Schema = {"type": "object", "properties": properties}
    names = list(properties)
    schema["required"] = [name for name in names if draw(st.booleans())]
    extra = draw(st.sampled_from(["none", "any", "unsaid", "schema"]))
    if extra == "none":
        schema["additionalProperties"] = False
    elif extra == "schema":
        schema["additionalProperties"] = draw(inner)
    elif extra == "any":
        schema["additionalProperties"] = True
    return schema


@st.composite
def _unions(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    if draw(st.booleans()):
        return {
            "type": draw(
                st.lists(st.sampled_from(["string", "null", "integer"]), min_size=1, max_size=3, unique=True)
            )
        }
    return {"anyOf": draw(st.lists(inner, min_size=1, max_size=3))}


def _values() -> st.SearchStrategy[Schema]:
    scalars = st.one_of(
        _integers(),
        _numbers(),
        _strings(),
        _enums(),
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.just({}),
    )
    return st.recursive(scalars, lambda s: st.one_of(_arrays(s), _objects(s), _unions(s)), max_leaves=8)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema that can be satisfied."""
    inner = _values()
    schema = draw(st.one_of(_objects(inner), inner))
    if draw(st.integers(0, 3)) == 0:
        node = {
            "type": "object",
            "properties": {"v": schema, "next": {"$ref": "#/$defs/node"}},
            "required": ["v"],
        }
        schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    return schema


@st.composite
def parameters(draw: st.DrawFn) -> Schema:
    """The schema of a tool's arguments, which can be satisfied: with names that every format can spell."""
    names = st.sampled_from(["a", "b", "ab", "city", "ü", "type", "properties"])
    values = st.one_of(_values(), _strings(), _strings().map(lambda s: {"anyOf": [s, {"type": "null"}]}))
    properties = draw(st.dictionaries(names, values, max_size=4))
    schema: Schema = {"type": "object", "properties": properties}
    if draw(st.booleans()):
        left = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
        node = {"type": "object", "properties": {"v": draw(_values()), "left": left}}
        properties["tree"], schema["$defs"] = {"$ref": "#/$defs/node"}, {"node": node}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    extra = draw(st.sampled_from(["none", "any", "unsaid", "schema"]))
    if extra != "unsaid":
        schema["additionalProperties"] = (
            {"none": False, "any": True}[extra] if extra != "schema" else draw(_values())
        )
    return schema
