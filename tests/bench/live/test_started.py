"""Lists of servers to start: each is understood, or refused in words that name what is wrong."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.bench.live.started import Recipe, read_recipes

ONE = '[[servers]]\nname = "a"\nurl = "http://127.0.0.1:1/v1"\ncommand = ["x"]\n'
LISTED = Path(__file__).parents[3] / "bench" / "results" / "peers" / "servers.toml"


def test_the_list_of_the_results(tmp_path: Path) -> None:
    recipes = read_recipes(LISTED)
    assert [recipe.name for recipe in recipes] == [
        "deeproot",
        "OpenVINO",
        "vLLM",
        "llama.cpp",
        "transformers",
    ]
    assert len({recipe.url for recipe in recipes}) == len(recipes)
    for recipe in recipes:
        assert recipe.url.split(":")[-1].removesuffix("/v1") in recipe.command
    (tmp_path / "one.toml").write_text(ONE + 'environment = { A = "b" }\nrounds = 2\n')
    only = Recipe("a", "http://127.0.0.1:1/v1", ("x",), {"A": "b"}, 2)
    assert read_recipes(tmp_path / "one.toml") == (only,)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "servers"),
        ("servers = []", "servers"),
        (ONE + "rounds = 0", "rounds"),
        (ONE + 'port = "1"', "port"),
        (ONE.replace('["x"]', "[]"), "command"),
        (ONE.replace('["x"]', '"x y"'), "command"),
        (ONE.replace("name", "called"), "called"),
        (ONE + ONE, "two servers are called 'a'"),
        ("[[servers", "end of an array declaration"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "servers.toml").write_text(text)
    with pytest.raises(ValueError, match=named) as raised:
        read_recipes(tmp_path / "servers.toml")
    assert "servers.toml" in str(raised.value)


_WORDS = ["[[servers]]\n", "name", "url", "command", "rounds", " = ", '"a"', "[", "]", "\n", "1", '["x"]']


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(_WORDS)).map("".join).map(str.encode) | st.binary(max_size=30))
def test_any_bytes_are_a_list_or_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "servers.toml"
    path.write_bytes(data)
    with contextlib.suppress(ValueError):
        assert all(recipe.command for recipe in read_recipes(path))
