"""Reading, searching, writing and patching, and what is said of calls that cannot be made."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.agent import file_tools, searching
from deeproot.runtime.agent.arguments import (
    TOOLS,
    BadCallError,
    Patch,
    Read,
    Search,
    Write,
    parse,
    schemas,
    sendable,
)
from deeproot.runtime.agent.jail import Jail, JailError
from deeproot.runtime.agent.outcome import Outcome
from deeproot.runtime.agent.stream import Call
from deeproot.runtime.context.invalidation.entities import ABSENT, dir_entity, file_entity
from deeproot.runtime.context.invalidation.look import look


@pytest.fixture
def jail(tmp_path: Path) -> Iterator[Jail]:
    made = Jail(tmp_path)
    yield made
    made.close()


def search(jail: Jail, pattern: str, path: str = ".") -> Outcome:
    return asyncio.run(searching.search(jail, Search(pattern=pattern, path=path)))


def test_a_file_is_shown_as_it_is(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\né".encode())
    outcome = file_tools.read(jail, Read(path="a.txt"))
    assert outcome.payload == "one\r\ntwo\né".encode()
    entity = file_entity(tmp_path / "a.txt")
    version = outcome.shows[entity]
    assert version is not None
    assert version.identity == look(entity).identity == blake3((tmp_path / "a.txt").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("first", "lines", "shown"),
    [
        (2, None, "[lines 2 to 3 of 3]\nb\nc"),
        (2, 1, "[lines 2 to 2 of 3]\nb\n"),
        (1, 2, "[lines 1 to 2 of 3]\na\nb\n"),
        (3, 9, "[lines 3 to 3 of 3]\nc"),
    ],
)
def test_some_lines(first: int, lines: int | None, shown: str, jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb\nc")
    assert file_tools.read(jail, Read(path="a", first=first, lines=lines)).payload.decode() == shown


def test_lines_that_are_not_there(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb\n")
    with pytest.raises(BadCallError, match="first is 3, and a has 2 lines"):
        file_tools.read(jail, Read(path="a", first=3))


def test_binary_long_and_empty_files(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "long").write_text("".join(f"{n:06}\n" for n in range(60_000)))
    (tmp_path / "none").write_text("")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(file_tools.MOST_BYTES + 1)
    assert file_tools.read(jail, Read(path="b")).payload.startswith(b"[binary file, 6 bytes, BLAKE3 ")
    shown = file_tools.read(jail, Read(path="long")).payload
    assert shown.startswith(b"[lines 1 to 37449 of 60000]\n000000\n")
    assert file_tools.read(jail, Read(path="none")).payload == b""
    with pytest.raises(JailError, match="can be read"):
        file_tools.read(jail, Read(path="huge"))


def test_a_folder_is_its_names(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "sub" / "x").mkdir(parents=True)
    (tmp_path / "sub" / "f").write_text("")
    outcome = file_tools.read(jail, Read(path="sub"))
    assert outcome.payload == b"f\nx/"
    assert set(outcome.shows) == {dir_entity(tmp_path / "sub")}
    assert file_tools.read(jail, Read(path="sub/x")).payload == b"[an empty folder]"


def test_search(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "a.py").write_text("import os\nPORT = 1\n# PORT\n")
    (tmp_path / "b.txt").write_text(f"PORT{'x' * 400}\n")
    (tmp_path / "bin").write_bytes(b"PORT\0")
    (tmp_path / ".git" / "c").write_text("PORT")
    outcome = search(jail, "^PORT")
    assert outcome.payload.decode().splitlines() == [
        f"b.txt:1: PORT{'x' * 296}[104 more characters]",
        "src/a.py:2: PORT = 1",
    ]
    assert set(outcome.inputs) == {file_entity(tmp_path / "b.txt"), file_entity(tmp_path / "src" / "a.py")}
    assert search(jail, "PORT", "src/a.py").payload == b"src/a.py:2: PORT = 1\nsrc/a.py:3: # PORT\n"
    assert search(jail, "nowhere").payload == b"[nothing found]"
    assert search(jail, "x", "../").payload == b"../ leads out of the workspace\n"
    with pytest.raises(BadCallError, match="pattern: "):
        search(jail, "(")


def test_too_many_hits(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 500)
    assert (
        search(jail, "x")
        .payload.decode()
        .endswith("a:200: x\n[stopped at 200 hits: narrow the pattern or the path]\n")
    )


def test_a_pattern_that_takes_for_ever(jail: Jail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a" * 40 + "b\n")
    monkeypatch.setattr(searching, "_SEARCH_S", 1.0)
    outcome = search(jail, "(a+)+$")
    assert outcome.exit_code == 1
    assert b"no answer after 1 s" in outcome.payload


def test_write_and_its_two_hashes(jail: Jail, tmp_path: Path) -> None:
    made = file_tools.prepare_write(jail, Write(path="new/a", content="x\ny"))
    assert (made.before, made.said) == (ABSENT, "created new/a: 2 lines, 3 bytes")
    assert not (tmp_path / "new" / "a").exists()
    outcome = file_tools.commit(jail, made)
    assert (tmp_path / "new" / "a").read_text() == "x\ny"
    assert outcome.wrote == {str(tmp_path / "new" / "a"): made.after}
    again = file_tools.prepare_write(jail, Write(path="new/a", content=""))
    assert (again.before, again.said) == (made.after, "replaced new/a: 0 lines, 0 bytes")


def test_patch(jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\r\none\r\n\xff")
    change = file_tools.prepare_patch(jail, Patch(path="a", old="two", new="2"))
    assert b"-two" in change.said.encode()
    file_tools.commit(jail, change)
    assert (tmp_path / "a").read_bytes() == b"one\r\n2\r\none\r\n\xff", "no other byte was touched"
    with pytest.raises(BadCallError, match="stands in a 2 times"):
        file_tools.prepare_patch(jail, Patch(path="a", old="one", new=""))
    with pytest.raises(BadCallError, match="does not stand in a; it does with other white space"):
        file_tools.prepare_patch(jail, Patch(path="a", old="one 2", new=""))
    with pytest.raises(JailError, match="b does not exist"):
        file_tools.prepare_patch(jail, Patch(path="b", old="x", new=""))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.text("ab\n", max_size=12), old=st.text("ab\n", min_size=1, max_size=4), new=st.text(max_size=4)
)
def test_a_patch_replaces_the_only_passage_or_nothing(before: str, old: str, new: str, jail: Jail) -> None:
    jail.write("f", before.encode())
    count = sum(before.startswith(old, i) for i in range(len(before)))
    try:
        change = file_tools.prepare_patch(jail, Patch(path="f", old=old, new=new))
    except BadCallError:
        assert before.count(old) != 1
        return
    assert before.count(old) == 1 <= count
    assert change.data == before.replace(old, new, 1).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("nope", "{}", "unknown tool: there is no tool 'nope'; call one of read, search, write, patch, run"),
        ("read", '{"path": ', "malformed arguments: what you gave read is no JSON"),
        ("read", "", "wrong arguments of read: path: field required; give one JSON object with path"),
        ("read", "[]", "wrong arguments of read"),
        ("read", '{"path": 3}', "path: input should be a valid string"),
        ("read", '{"path": "a", "first": 0}', "first: input should be greater than or equal to 1"),
        ("read", '{"path": "a", "lenght": 1}', "lenght: extra inputs are not permitted"),
        ("run", '{"command": "x", "timeout_s": -1}', "timeout_s: input should be greater than 0"),
        ("patch", '{"path": "a", "old": "", "new": ""}', "old: string should have at least 1 character"),
        ("read", "[" * 100_000, "malformed arguments"),
    ],
)
def test_calls_that_cannot_be_made(name: str, arguments: str, words: str) -> None:
    for call in (Call("c", name, arguments), sendable(Call("c", name, arguments))):
        with pytest.raises(BadCallError) as caught:
            parse(call, tuple(TOOLS))
        assert words in str(caught.value)
        assert len(str(caught.value)) < 1000


@given(arguments=st.text(max_size=40) | st.dictionaries(st.text(), st.integers()).map(json.dumps))
def test_what_goes_back_into_the_conversation_is_an_object(arguments: str) -> None:
    made = sendable(Call("c", "read", arguments))
    assert isinstance(json.loads(made.arguments), dict)
    if made.arguments != arguments and arguments:
        assert json.loads(made.arguments) == {"malformed": arguments}


def test_schemas_describe_what_is_accepted() -> None:
    good = {
        "read": {"path": "a", "first": 2},
        "search": {"pattern": "x"},
        "write": {"path": "a", "content": ""},
        "patch": {"path": "a", "old": "x", "new": ""},
        "run": {"command": "ls", "timeout_s": 3},
    }
    for tool in schemas(tuple(TOOLS)):
        function = tool["function"]
        jsonschema.validate(good[function["name"]], function["parameters"])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({}, function["parameters"])
        parse(Call("c", function["name"], json.dumps(good[function["name"]])), tuple(TOOLS))
        assert function["description"]
        assert "title" not in json.dumps(tool)
