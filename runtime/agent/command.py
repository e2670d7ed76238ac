"""`deeproot agent`: a task in a folder, from the command line."""

import argparse
import asyncio
import fcntl
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from deeproot.runtime.agent.arguments import TOOLS
from deeproot.runtime.agent.jail import Jail
from deeproot.runtime.agent.server_prices import ServerPrices
from deeproot.runtime.agent.session import ANSWERED
from deeproot.runtime.agent.setup import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_URL,
    POLICY,
    Settings,
    begin,
    build,
    default_budget,
)
from deeproot.runtime.agent.shell import Limits, Shell, probe
from deeproot.runtime.agent.stream import ModelError, Server
from deeproot.runtime.agent.turn_log import read_progress
from deeproot.runtime.agent.view import JsonView, LiveView, PlainView, Tally, View, printable
from deeproot.runtime.cache_client import CacheClient
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context import record
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.cost_oracle import TokenCountOracle
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.options import SetupError

DONE, OUT_OF_TURNS, STOPPED = 0, 3, 130
_PRICE_WAITS_S = 5.0
"""For a price, with which the run waits."""


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`flags.py` declares them); returns the exit code. Raises SetupError."""
    if not args.resume and not args.task:
        raise SetupError('say what to do: deeproot agent --workspace DIR "the task"')
    try:
        jail = Jail(args.workspace)
    except NotADirectoryError as error:
        raise SetupError(f"--workspace {error}") from None
    try:
        path = _log_path(args, jail.root)
        with _locked(path), EventLog.open(path) as log:
            return asyncio.run(_main(args, jail, log, path))
    except (ModelError, BudgetError, TemplateError, EventLogError, sqlite3.Error) as error:
        again = f"; deeproot agent --workspace {args.workspace} --resume goes on" if args.log is None else ""
        raise SetupError(f"{error}{again}") from None
    finally:
        jail.close()


async def _main(args: argparse.Namespace, jail: Jail, log: EventLog, path: Path) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with ExitStack() as stack:
        settings = Settings.of(log) if args.resume else None
        if settings is not None and settings.workspace != jail.root:
            raise SetupError(f"the run is of {settings.workspace}: give that as --workspace")
        server = Server(
            args.base_url or (settings.base_url if settings else DEFAULT_URL), api_key=args.api_key
        )
        try:
            shell, notes = await _shell(args, jail)
            if shell is not None:
                stack.callback(shell.close)
            if settings is None:
                settings = await _settings(args, jail, server, shell is not None)
                begin(log, settings, args.task, policy=_policy(args), constraints=args.constraint)
            elif args.task:
                record.user(log, args.task)
            view = _view(args, settings.budget)
            stack.callback(view.close)
            for note in (*notes, f"log: {path}"):
                view.noted(note)
            session = build(
                log,
                settings,
                jail=jail,
                shell=shell,
                server=server,
                watcher=view,
                max_turns=args.max_turns,
                prices=view.tally.prices,
                oracle=_oracle(args, settings, view, stack),
            )
            return await _to_end(session.run(), log, view, args)
        finally:
            await server.close()


def _oracle(
    args: argparse.Namespace, settings: Settings, view: View, stack: ExitStack
) -> ServerPrices | None:
    """Raises SetupError if the server's tokens are not known."""
    if not args.server_prices:
        return None
    if settings.tokenizer is None or settings.chat_template is None:
        raise SetupError(
            "--server-prices needs --tokenizer and --chat-template, the model's: else the prompt's tokens are not the server's"
        )
    cache = CacheClient(args.base_url or settings.base_url, api_key=args.api_key, timeout_s=_PRICE_WAITS_S)
    return ServerPrices(stack.enter_context(cache), TokenCountOracle(view.tally.prices), view.noted)


async def _to_end(running: Any, log: EventLog, view: View, args: argparse.Namespace) -> int:
    resume = (
        f"deeproot agent --workspace {args.workspace} "
        + (f"--log {args.log} " if args.log else "")
        + "--resume"
    )
    try:
        end = await running
    except asyncio.CancelledError:
        view.close()
        view.noted(f"stopped; {resume} goes on from here")
        return STOPPED
    view.close()
    at = read_progress(log)
    answer = at.message.text if at.message is not None else ""
    if isinstance(view, JsonView):
        view.put("end", why=end, answer=answer, **view.tally.as_dict())
    else:
        view.noted(view.tally.summary())
    if end != ANSWERED:
        view.noted(f"its {args.max_turns} turns are used up; {resume} --max-turns N goes on")
        return OUT_OF_TURNS
    if not isinstance(view, JsonView):
        print(printable(answer), flush=True)
    return DONE


async def _shell(args: argparse.Namespace, jail: Jail) -> tuple[Shell | None, list[str]]:
    """What runs commands, and what is to be said about it; None: they are not offered."""
    if args.no_run:
        return None, []
    use, found = await probe(network=args.allow_network)
    notes = list(found)
    if not use and not args.unconfined:
        return None, [*notes, "run: not offered for that; --unconfined offers it all the same"]
    missing = [name for name in args.env if name not in os.environ]
    if missing:
        raise SetupError(f"--env {missing[0]}: there is no such variable")
    shell = Shell(
        jail.root,
        use,
        limits=Limits(seconds=args.command_timeout),
        reads=[os.fspath(path) for path in args.allow_read],
        env=[(name, os.environ[name]) for name in args.env],
    )
    return shell, notes


async def _settings(args: argparse.Namespace, jail: Jail, server: Server, with_run: bool) -> Settings:
    model, window = args.model, None
    if model is None or args.context_tokens is None:
        try:
            first, window = await server.model()
            model = model or first
        except ModelError:
            if model is None:
                raise
    max_tokens = args.max_tokens or DEFAULT_MAX_TOKENS
    request: dict[str, Any] = {"max_tokens": max_tokens}
    request |= {name: value for name in ("temperature", "seed") if (value := getattr(args, name)) is not None}
    exact = args.tokenizer is not None
    tools = tuple(name for name in TOOLS if with_run or name != "run")
    return Settings(
        workspace=jail.root,
        model=model,
        base_url=server.base_url,
        request=request,
        budget=args.context_tokens or default_budget(window, max_tokens, exact=exact),
        compaction=args.compaction or "checkpoint",
        tools=tools,
        tokenizer=os.path.abspath(args.tokenizer) if exact else None,
        chat_template=os.path.abspath(args.chat_template) if args.chat_template is not None else None,
        status=args.status,
        time_budget_s=args.time_budget,
        skills=os.path.abspath(args.skills) if args.skills is not None else None,
    )


def _policy(args: argparse.Namespace) -> str:
    if args.system is None:
        return POLICY
    try:
        return str(args.system.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"--system {args.system}: {error}") from None


def _view(args: argparse.Namespace, budget: int) -> View:
    prices = None
    if args.price is not None:
        prices = Prices(args.price, args.price if args.price_cached is None else args.price_cached)
    tally = Tally(prices, args.price_output or 0.0)
    if args.json:
        return JsonView(sys.stdout, tally)
    return LiveView(sys.stderr, tally, budget) if sys.stderr.isatty() else PlainView(sys.stderr, tally)


def _log_path(args: argparse.Namespace, root: str) -> Path:
    """The log to write; of a new run none that exists. Raises SetupError."""
    if args.log is not None:
        path = Path(os.path.realpath(args.log))
        if path.is_relative_to(root):
            raise SetupError(
                f"--log {args.log} is in the workspace, where the agent could change it: put it elsewhere"
            )
        if args.resume and not path.is_file():
            raise SetupError(f"--log {args.log} does not exist: there is nothing to resume")
        if not args.resume and path.exists():
            raise SetupError(f"--log {args.log} exists: --resume goes on with it, or give another")
        if not path.parent.is_dir():
            raise SetupError(f"--log {args.log}: there is no folder {path.parent}")
        return path
    folder = Path.home() / ".local" / "state" / "deeproot" / "agent"
    folder /= f"{Path(root).name or 'root'}-{blake3(os.fsencode(root)).hexdigest()[:8]}"
    if Path(os.path.realpath(folder)).is_relative_to(root):
        raise SetupError(f"the workspace holds {folder}, where logs are kept: give a --log outside of it")
    numbers = sorted(int(file.stem) for file in folder.glob("*.db") if file.stem.isdigit())
    if args.resume:
        if not numbers:
            raise SetupError("there is no run of this workspace to resume")
        return folder / f"{numbers[-1]:04}.db"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{(numbers or [0])[-1] + 1:04}.db"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One agent a log. A file of its own, since closing the log's would drop SQLite's locks."""
    with open(f"{path}.lock", "a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"another agent is at {path}: wait for it, or stop it") from None
        yield
