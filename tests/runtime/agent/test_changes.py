"""Files that change under the model: by somebody else, by its commands, by its own edits."""

from pathlib import Path

import pytest

from deeproot.runtime.agent.session import ANSWERED
from deeproot.runtime.context.event_log import EventLog

from .runs import go, result_of, said_to
from .scripted import Reply, ToolCall


@pytest.mark.parametrize("tool", ["write", "patch"])
def test_somebody_elses_change_is_found_before_it_is_overwritten(
    tool: str, log: EventLog, workspace: Path
) -> None:
    """Between the model's look and its edit, the user edits: the edit is refused, and the file shown as it is."""

    def edit(*_: object) -> None:
        (workspace / "a.py").write_text("PORT = 5432\nUSER = 1\n")

    change = {
        "write": {"path": "a.py", "content": "PORT = 5433\n"},
        "patch": {"path": "a.py", "old": "5432", "new": "5433"},
    }[tool]
    server, _, _ = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [ToolCall(tool, change)], first=edit),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "5432", "new": "5434"})]),
        Reply("Done."),
    )
    assert "is not as event 8 showed it: somebody else changed it since" in result_of(server, "c1-0")
    shown = [str(m["content"]) for m in said_to(server, 2)]
    assert any("<artifact" in text and "USER = 1" in text for text in shown), "it was read anew for the model"
    assert (workspace / "a.py").read_text() == "PORT = 5434\nUSER = 1\n", "made anew, on what is there"


def test_what_a_command_changed_is_the_agents_own_doing(log: EventLog, workspace: Path) -> None:
    server, seen, _ = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [ToolCall("run", {"command": "sed -i s/5432/1/ a.py"})]),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "= 1", "new": "= 2"})]),
        Reply("Done."),
    )
    assert (workspace / "a.py").read_text() == "PORT = 2\n"
    assert "no longer so: #8" in seen.notes
    assert b"a.py changed by others" not in b"".join(server.bodies)


def test_a_file_that_became_a_link_is_not_read_anew(log: EventLog, workspace: Path) -> None:
    """The way out over what the host itself reads for the model."""
    secret = workspace.parent / "secret.txt"
    secret.write_text("the secret")

    def swap(*_: object) -> None:
        (workspace / "a.py").unlink()
        (workspace / "a.py").symlink_to(secret)

    server, _, end = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "5432", "new": "1"})], first=swap),
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("Done."),
    )
    assert end == ANSWERED
    assert b"the secret" not in b"".join(server.bodies)
    assert secret.read_text() == "the secret"


def test_a_test_run_is_in_doubt_once_what_it_tested_changes(log: EventLog, workspace: Path) -> None:
    (workspace / "check.py").write_text("import a\nassert a.PORT == 1, a.PORT\n")
    check = ToolCall("run", {"command": "python3 check.py"})
    server, _, _ = go(
        log,
        workspace,
        Reply("", [ToolCall("read", {"path": "a.py"})]),
        Reply("", [check]),
        Reply("", [ToolCall("write", {"path": "a.py", "content": "PORT = 1\n"})]),
        Reply("", [check]),
        Reply("Done."),
    )
    tail = [str(m["content"]) for m in said_to(server, 3)]
    assert any("in doubt #" in text and "a.py changed by #" in text for text in tail)
    assert 'exit_code="1"' in result_of(server, "c1-0")
    assert 'exit_code="0"' in result_of(server, "c3-0")
    assert any("stale #" in str(m["content"]) for m in said_to(server, 4)), "the first run no longer holds"
