"""What grammars cost by library: to compile a schema, and a token's mask; on the schemas of BFCL.

    python -m deeproot.bench.grammar_libraries --model model.gguf [--xgrammar] [--every 1]

Every function's schema is compiled once, anew and in one thread, and an example of it is then read token by token: the
mask is filled, must allow the token, and the token is accepted. `--xgrammar` compares; the package is not a dependency
(it needs torch and apache-tvm-ffi). One JSON object is printed; times are of one thread.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from deeproot.bench.bfcl import read_entries
from deeproot.engine.grammar import GrammarError, TokenBytes, mask_width
from deeproot.engine.grammar_llguidance import LLGuidanceBackend
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.structured.grammar_text import GrammarText


class Reader(Protocol):
    """A compiled schema that reads one output."""

    def allows(self, token_id: int) -> bool:
        """Fill the mask and look the token up."""
        ...

    def accept(self, token_id: int) -> None: ...


@dataclass
class Times:
    """Of one library, in seconds."""

    compile: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    """Mask and acceptance of an output's first token; what is compiled late shows here."""
    token: list[float] = field(default_factory=list)
    """The same of every later token."""
    refused_schemas: list[str] = field(default_factory=list)
    refused_outputs: list[str] = field(default_factory=list)
    """Of schemas whose example could not be read."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file or folder; for its vocabulary")
    parser.add_argument("--xgrammar", action="store_true", help="measure xgrammar too")
    parser.add_argument("--every", type=int, default=1, help="take one entry of so many")
    args = parser.parse_args(argv)
    assets = ModelAssets.load(args.model)
    compilers = {"llguidance": llguidance_compiler(assets)}
    if args.xgrammar:
        compilers["xgrammar"] = xgrammar_compiler(assets)
    schemas = [f["parameters"] for entry in read_entries()[:: args.every] for f in entry.functions]
    result: dict[str, Any] = {"vocab_size": assets.tokenizer.vocab_size, "schemas": len(schemas)}
    for name, compile_schema in compilers.items():
        result[name] = summary(measure(compile_schema, schemas, assets.tokenizer))
    print(json.dumps(result, indent=2))
    return 0


def measure(
    compile_schema: Callable[[dict[str, Any]], Reader],
    schemas: Sequence[dict[str, Any]],
    tokenizer: Tokenizer,
) -> Times:
    """Compile each schema and read its example. What a library refuses is noted, not measured."""
    times = Times()
    for schema in schemas:
        started = time.perf_counter()
        try:
            reader = compile_schema(schema)
        except Exception as error:  # each library has its own
            times.refused_schemas.append(f"{type(error).__name__}: {error}"[:200])
            continue
        times.compile.append(time.perf_counter() - started)
        text = json.dumps(example(schema))
        for i, token_id in enumerate(tokenizer.encode(text, parse_special=False).tolist()):
            started = time.perf_counter()
            allowed = reader.allows(token_id)
            if not allowed:
                times.refused_outputs.append(text[:200])
                break
            reader.accept(token_id)
            (times.token if i else times.first_token).append(time.perf_counter() - started)
    return times


def summary(times: Times) -> dict[str, Any]:
    """Microseconds."""
    return {
        "compile_us": percentiles(times.compile),
        "first_token_us": percentiles(times.first_token),
        "token_us": percentiles(times.token),
        "tokens": len(times.token),
        "refused_schemas": len(times.refused_schemas),
        "refused_outputs": len(times.refused_outputs),
        "refusals": (times.refused_schemas + times.refused_outputs)[:5],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median, the 99th of a hundred, and the most, in microseconds."""
    if not seconds:
        return {}
    values = np.array(seconds) * 1e6
    return {
        "mean": round(float(values.mean()), 1),
        "p50": round(float(np.percentile(values, 50)), 1),
        "p99": round(float(np.percentile(values, 99)), 1),
        "max": round(float(values.max()), 1),
    }


def example(schema: dict[str, Any]) -> Any:
    """A value that validates against a schema of BFCL's, with all properties that it names."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            unlisted: dict[str, dict[str, Any]] = {name: {} for name in schema.get("required", ())}
            named = {**unlisted, **schema.get("properties", {})}
            return {name: example(inner) for name, inner in named.items()}
        case "array":
            return [example(schema.get("items", {}))] * 2
        case "integer":
            return min(42, schema.get("maximum", 42))
        case "number":
            return 2.5
        case "boolean":
            return True
        case _:
            return "2024-03-15" if schema.get("format") == "date" else "a few plain words"


def llguidance_compiler(assets: ModelAssets) -> Callable[[dict[str, Any]], Reader]:
    """As the server does it, but for its check of the schema before the engine's."""
    tokenizer = assets.tokenizer
    tokens = TokenBytes(tokenizer.pieces, tokenizer.special_ids, assets.end_token_ids)
    backend = LLGuidanceBackend(tokens, tokenizer.vocab_size)

    class LLGuidanceReader:
        def __init__(self, schema: dict[str, Any]) -> None:
            grammar = GrammarText({})
            grammar.rule("start", grammar.json(schema))
            self._matcher = backend.compile(str(grammar))
            self._masks = np.zeros((1, mask_width(tokenizer.vocab_size)), np.int32)

        def allows(self, token_id: int) -> bool:
            backend.fill([self._matcher], self._masks)
            return bool(self._masks[0, token_id // 32] >> (token_id % 32) & 1)

        def accept(self, token_id: int) -> None:
            backend.accept([self._matcher], [token_id])

    return LLGuidanceReader


def xgrammar_compiler(assets: ModelAssets) -> Callable[[dict[str, Any]], Reader]:
    """With its settings for free white space and for properties that a schema does not forbid."""
    xgrammar = importlib.import_module("xgrammar")
    tokenizer = assets.tokenizer
    info = xgrammar.TokenizerInfo(
        list(tokenizer.pieces),
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=tokenizer.vocab_size,
        stop_token_ids=sorted(assets.end_token_ids),
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    class XGrammarReader:
        def __init__(self, schema: dict[str, Any]) -> None:
            compiled = compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=True, strict_mode=False
            )
            self._matcher = xgrammar.GrammarMatcher(compiled)
            self._mask = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)

        def allows(self, token_id: int) -> bool:
            self._matcher.fill_next_token_bitmask(self._mask)
            return bool(int(self._mask[0, token_id // 32]) >> (token_id % 32) & 1)

        def accept(self, token_id: int) -> None:
            if not self._matcher.accept_token(token_id):
                raise GrammarError(f"token {token_id} was allowed and then refused")

    return XGrammarReader


if __name__ == "__main__":
    sys.exit(main())
