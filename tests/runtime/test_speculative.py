"""`--speculative-config`: what users of vLLM write."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.cli import build_parser, engine_options
from deeproot.runtime.engine_messages import Start, decode_start, encode_start
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.speculative import EXAMPLE, parse_speculative
from deeproot.scheduler.config import SpeculationConfig

numbers = st.integers(-2, 20) | st.none()


def test_what_is_not_said_follows_what_is() -> None:
    assert parse_speculative("off") is None
    assert parse_speculative(EXAMPLE) == SpeculationConfig(5)
    asked = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}
    assert parse_speculative(json.dumps(asked)) == SpeculationConfig(4, 2, 2)
    assert parse_speculative({"num_speculative_tokens": 4, "prompt_lookup_min": 6}) == SpeculationConfig(
        4, 6, 6
    )


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "method": st.sampled_from(["ngram", "medusa"]) | st.integers(),
            "num_speculative_tokens": numbers | st.text(max_size=3),
            "prompt_lookup_max": numbers,
            "prompt_lookup_min": numbers,
            "disable_by_batch_size": numbers,
            "model": st.just("draft"),
        },
    )
)
def test_anything_is_a_configuration_or_a_sentence(fields: dict[str, Any]) -> None:
    said = ""
    found = None
    try:
        found = parse_speculative(json.dumps(fields))
    except ValueError as error:
        said = str(error)
    if found is None:
        assert EXAMPLE in said
        return
    assert found.num_speculative_tokens == fields["num_speculative_tokens"]
    for name in ("prompt_lookup_max", "prompt_lookup_min"):
        assert fields.get(name) in (None, getattr(found, name))


@given(st.text(max_size=20))
def test_any_text_is_answered(text: str) -> None:
    if text != "off":
        with pytest.raises(ValueError, match="write it like"):
            parse_speculative(text)


def test_the_flag_reaches_the_engines_process(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    parser = build_parser()
    args = parser.parse_args(["serve", "--model", str(tmp_path), "--speculative-config", EXAMPLE])
    options = engine_options(args)
    assert options.speculative_config == SpeculationConfig(5)
    start = Start(tmp_path, options, "info", "text", 30.0)
    assert decode_start(encode_start(start)) == start
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", "--model", str(tmp_path), "--speculative-config", '{"method": "eagle"}'])
    assert "method" in capsys.readouterr().err
    assert EngineOptions(model="x").speculative_config is None


def test_llm_takes_the_fields() -> None:
    with pytest.raises(SetupError, match="num_speculative_tokens must be"):
        LLM("nowhere", speculative_config={"num_speculative_tokens": 0})
