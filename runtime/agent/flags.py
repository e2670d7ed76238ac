"""The flags of `deeproot agent`; no heavy imports, so that the command line starts fast."""

from pathlib import Path
from typing import Any

from deeproot.runtime.flags import number, whole

COMPACTIONS = ("checkpoint", "joint", "query_aware", "query_aware_cited", "per_result", "windowed", "none")


def add_agent(commands: Any) -> None:
    command = commands.add_parser(
        "agent",
        help="let a model do a task in a folder",
        description="Let a model do a task in a folder, with tools that read, search, write, patch and run commands there"
        " and nowhere else. Exit code 0: it answered; 1: something failed; 3: its turns are used up; 130: stopped.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.agent.command")
    command.add_argument("task", nargs="?", metavar="TASK", help="what to do; with --resume, what else to do")
    command.add_argument(
        "--workspace", type=Path, required=True, metavar="DIR", help="folder in which it works"
    )
    command.add_argument(
        "--resume", action="store_true", help="go on with the newest run of the workspace, or that of --log"
    )
    command.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="event log of the run (default: a new one under ~/.local/state)",
    )
    command.add_argument("--json", action="store_true", help="print JSON lines")
    _add_model(command.add_argument_group("model"))
    _add_context(command.add_argument_group("context"))
    _add_limits(command.add_argument_group("limits"))


def _add_model(group: Any) -> None:
    group.add_argument(
        "--base-url",
        metavar="URL",
        help="an OpenAI-compatible server, with its /v1 (default: http://127.0.0.1:8000/v1)",
    )
    group.add_argument("--model", metavar="NAME", help="(default: the first that the server lists)")
    group.add_argument("--api-key", default="", metavar="KEY", help="key for the server")
    group.add_argument("--max-tokens", type=whole(1), metavar="N", help="longest reply (default: 4096)")
    group.add_argument("--temperature", type=number(0, 100), metavar="T", help="(default: the server's)")
    group.add_argument("--seed", type=whole(0), metavar="N", help="of every request (default: none)")


def _add_context(group: Any) -> None:
    group.add_argument("--system", type=Path, metavar="FILE", help="policy in place of the built-in one")
    group.add_argument(
        "--constraint",
        action="append",
        default=[],
        metavar="TEXT",
        help="a rule to keep, word for word; repeatable",
    )
    group.add_argument(
        "--context-tokens",
        type=whole(1),
        metavar="N",
        help="longest prompt (default: what the server's window leaves)",
    )
    group.add_argument(
        "--compaction", choices=COMPACTIONS, help="what stands for old turns (default: checkpoint)"
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="tokenizer.json to count with (default: 4 characters a token)",
    )
    group.add_argument(
        "--chat-template", type=Path, metavar="FILE", help="the model's (default: a plain one)"
    )
    group.add_argument(
        "--status",
        action="store_true",
        help="say counts of calls, the model's own list and its time at the end of each prompt",
    )
    group.add_argument(
        "--time-budget", type=number(1), metavar="SECONDS", help="with --status, the time that there is"
    )
    group.add_argument(
        "--skills", type=Path, metavar="DIR", help="folder of skills, each a folder with a SKILL.md"
    )
    group.add_argument(
        "--server-prices",
        action="store_true",
        help="choose what to do with stale text by what a deeproot server has cached (needs --tokenizer and --chat-template)",
    )
    group.add_argument("--price", type=number(0), metavar="DOLLARS", help="of a million input tokens")
    group.add_argument("--price-cached", type=number(0), metavar="DOLLARS", help="of a million cached ones")
    group.add_argument("--price-output", type=number(0), metavar="DOLLARS", help="of a million output ones")


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--max-turns", type=whole(1), default=50, metavar="N", help="replies in all (default: %(default)s)"
    )
    group.add_argument(
        "--command-timeout",
        type=number(0.1),
        default=120.0,
        metavar="SECONDS",
        help="of one command (default: %(default)g)",
    )
    group.add_argument("--no-run", action="store_true", help="do not offer commands")
    group.add_argument("--allow-network", action="store_true", help="let commands use the network")
    group.add_argument(
        "--allow-read",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="let commands read this, too; repeatable",
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this variable to commands; repeatable",
    )
    group.add_argument(
        "--unconfined",
        action="store_true",
        help="run commands even where the system cannot keep them to the workspace",
    )
