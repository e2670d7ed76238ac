"""What commands and calls show and change."""

import pytest

from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.filters.observation import Action


def test_swe_agents_newer_commands_and_a_working_directory_learnt_from_a_view() -> None:
    reader = ActionReader()
    view = "[File: reproduce.py (1 lines total)]\r\n1:"
    assert reader.command("create reproduce.py", view).shows == "reproduce.py"  # nothing says where that is
    view = "[File: /testbed/reproduce.py (3 lines total)]\r\n1:import os"
    assert reader.command("insert 'import os' 0", view).changes == ("/testbed/reproduce.py",)
    view = "Text replaced.\n[File: src/a.py (9 lines total)]\n1:x"
    assert reader.command("edit 'a' 'b'", view).changes == ("/testbed/src/a.py",)
    assert (
        reader.command(
            "edit 'a' 'b'", "Your proposed edit has introduced new syntax error(s).\n" + view
        ).changes
        == ()
    )
    assert reader.command("rm reproduce.py").changes == ("/testbed/reproduce.py",)
    reader.enter("/elsewhere")
    assert reader.command("cat b").shows == "/elsewhere/b"


@pytest.mark.parametrize(
    ("command", "shows", "changes"),
    [
        ("cat src/a.py", "/w/src/a.py", ()),
        ("cd sub && cat a.py", "/w/sub/a.py", ()),
        ("sed -n '1,40p' a.py", "/w/a.py", ()),
        ("head -n 20 a.py", "/w/a.py", ()),
        ("cat a.py | grep x", None, ()),
        ("cat a.py b.py", None, ()),
        ("cat a.py && make", None, ()),
        ("sed -i 's/a/b/' a.py", None, ("/w/a.py",)),
        ("rm -rf a.py b", None, ("/w/a.py", "/w/b")),
        ("mv a.py b.py", None, ("/w/a.py", "/w/b.py")),
        ("cat > a.py <<'EOF'\nrm b.py\nEOF\n", None, ("/w/a.py",)),
        ("make 2>&1 | tee log.txt", None, ("/w/log.txt",)),
        ("make > log.txt 2>&1", None, ("/w/log.txt",)),
        ("git checkout -- a.py", None, ("/w/a.py",)),
        ("git checkout main", None, ()),
        ("ls > /dev/null", None, ()),
        ("echo 'a > b'", None, ("/w/b",)),  # a quoted redirect is taken for one: it only costs a read
        ("python x.py", None, ()),
        ("unbalanced 'quote", None, ()),
        ("", None, ()),
    ],
)
def test_shell_actions(command: str, shows: str | None, changes: tuple[str, ...]) -> None:
    action = ActionReader("/w").command(command)
    assert (action.shows, action.changes) == (shows, changes)


def test_failed_commands_changed_nothing() -> None:
    assert ActionReader("/w").command("rm a.py", exit_code=1).changes == ()


def test_editor_calls() -> None:
    reader = ActionReader("/w")
    assert reader.tool_call("str_replace_editor", {"command": "view", "path": "a.py"}).shows == "/w/a.py"
    assert reader.tool_call("str_replace_editor", {"command": "str_replace", "path": "/x"}).changes == ("/x",)
    assert reader.tool_call("read_file", {"path": "b"}).shows == "/w/b"
    assert reader.tool_call("write_file", {"file_path": "b", "content": ""}).changes == ("/w/b",)
    assert reader.tool_call("bash", {"command": "cat c"}).shows == "/w/c"
    assert reader.tool_call("weather", {"city": "x"}) == Action("weather")
