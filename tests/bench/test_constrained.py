"""BFCL's schemas with a model whose weights are random: every call that ends validates."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest

from deeproot.bench import constrained, grammar_libraries
from deeproot.bench.bfcl import Entry, read_entries
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.chat.reply_events import ToolCall
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.output_text import EndReason
from deeproot.runtime.sampling_options import SamplingOptions
from deeproot.scheduler.messages import Usage

from ..runtime.tiny_model import write_tiny_model


def some_entries() -> list[Entry]:
    """Eight of each set, not too long for a tokenizer of bytes."""
    short = [entry for entry in read_entries() if len(str(entry.functions)) < 900]
    groups = sorted({entry.group for entry in short})
    of_group = [[entry for entry in short if entry.group == group] for group in groups]
    return [entry for entries in of_group for entry in entries[:: len(entries) // 8][:8]]


def test_forty_questions(tmp_path: Path) -> None:
    """Some of each set. A random model takes long to end a string, so not all end."""
    folder = write_tiny_model(tmp_path / "tiny", max_position_embeddings=4096)
    entries = some_entries()
    assert len(entries) == 40
    sampling = SamplingOptions(max_tokens=120, temperature=1.0, seed=1)
    with (
        LLM(str(folder), load_format="dummy", kv_cache_memory_bytes=2**25, max_num_seqs=8) as llm,
        ThreadPoolExecutor(8) as pool,
    ):
        outcomes = list(pool.map(lambda entry: constrained.ask(llm, entry, sampling), entries))
    result = constrained.summary(outcomes)
    assert result["outputs"] == 40
    assert result["invalid"] == 0, result["faults"]
    assert set(result["ends"]) <= {"tool_calls", "length"}
    assert result["ends"]["tool_calls"] >= 8


def completion(reason: EndReason, text: str = "", arguments: str = '{"x": 1}', name: str = "f") -> Completion:
    calls = (ToolCall("id", name, arguments),)
    return Completion(text, (), reason, Usage(prompt=1, cached=0, computed=1, output=1), calls)


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    done = constrained.Outcome("simple_python_0", "simple_python", "tool_calls", 1, 9, (), None)
    cut = constrained.Outcome("simple_python_1", "simple_python", "length", 0, 50, (), None)
    for outcome in (done, cut):
        with constrained.Log(tmp_path / "log.jsonl") as log:
            log.add(outcome)
    with constrained.Log(tmp_path / "log.jsonl") as log:
        assert log.outcomes == [done, cut]
    assert constrained.summary(log.outcomes)["share_cut_by_length"] == 0.5


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (completion("tool_calls"), True),
        (completion("tool_calls", arguments='{"x": "1"}'), False),
        (completion("tool_calls", arguments="{"), False),
        (completion("tool_calls", name="g"), False),
        (completion("tool_calls", text="hm"), False),
        (completion("stop"), False),
    ],
)
def test_faults_are_found(answer: Completion, is_right: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    entry = Entry("simple_python_0", "?", ({"name": "f", "parameters": schema},))
    assert (not constrained.faults_of(entry, answer)) is is_right


def test_examples_validate_and_are_read(tmp_path: Path) -> None:
    assets = ModelAssets.load(write_tiny_model(tmp_path / "tiny"))
    schemas = [function["parameters"] for entry in read_entries() for function in entry.functions]
    schemas = schemas[5::33]
    for schema in schemas:
        jsonschema.validate(grammar_libraries.example(schema), schema)
    times = grammar_libraries.measure(
        grammar_libraries.llguidance_compiler(assets), schemas, assets.tokenizer
    )
    assert times.refused_schemas == times.refused_outputs == []
    assert len(times.compile) == len(schemas)
