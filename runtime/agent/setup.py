"""From settings to a session, and what of them a log keeps so that a resumed run is the same."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blake3 import blake3

from deeproot.runtime.agent.arguments import TOOLS, schemas
from deeproot.runtime.agent.file_tools import MOST_BYTES
from deeproot.runtime.agent.host_tools import HostTools
from deeproot.runtime.agent.jail import Jail, JailError
from deeproot.runtime.agent.running import Running
from deeproot.runtime.agent.session import WAITS_S, Options, Session, Watcher
from deeproot.runtime.agent.shell import Shell
from deeproot.runtime.agent.stream import Server
from deeproot.runtime.agent.supervisor import Supervisor
from deeproot.runtime.agent.turn_log import run_event, settings_of
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context import record
from deeproot.runtime.context.checkpoint.files import Workspace
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.cost_oracle import CostOracle
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import Version
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.settle import Settler
from deeproot.runtime.context.measure.replay import PLAIN_TEMPLATE, RoughTokenizer
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.skills import use
from deeproot.runtime.context.skills.skill import Skill, SkillError, catalogue, load_skills
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.status.time_sense import MANUAL, TimeSense
from deeproot.runtime.context.status.todo import LIST_TOOLS
from deeproot.runtime.context.template import ChatTemplate, read_template
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenizer import TokenizerError, TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet
from deeproot.runtime.options import SetupError

POLICY = (
    "You work on one folder, the workspace; paths are relative to it. Look before you change anything, change as little as"
    " does the task, and check what you did by running what tests it. Several calls in one reply are made together."
    "\n\nA line such as [stale #12: app.py changed by others; reread] says that what event 12 showed is no longer so: read"
    " it anew before you rely on it. What you remember of files that you cannot see is worth nothing."
    "\n\nWhen the task is done, or cannot be done, answer without a call: what you changed, and how you checked it."
)
DEFAULT_URL, DEFAULT_WINDOW, DEFAULT_MAX_TOKENS = "http://127.0.0.1:8000/v1", 32_768, 4096
_ROUGH = 0.85
"""Share of the window that is used where tokens are only estimated."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides what the model sees. `request`: fields of every request. `budget`: tokens of the longest prompt."""

    workspace: str
    model: str
    base_url: str
    request: Mapping[str, Any]
    budget: int
    compaction: str = "checkpoint"
    tools: tuple[str, ...] = tuple(TOOLS)
    tokenizer: str | None = None
    chat_template: str | None = None
    status: bool = False
    """Counts of calls and the model's own list at the end of each prompt."""
    time_budget_s: float | None = None
    """With `status`, the time that there is."""
    skills: str | None = None
    """A folder with skills."""

    @classmethod
    def of(cls, log: EventLog) -> "Settings":
        """Those that the log's run was begun with. Raises SetupError if it is no agent's log."""
        kept = settings_of(log)
        try:
            if kept is not None:
                return cls(**{**kept, "tools": tuple(kept["tools"])})
        except (TypeError, KeyError):
            pass
        raise SetupError("the log is not one of deeproot agent: give the --log of a run that it began")


def begin(
    log: EventLog, settings: Settings, task: str, *, policy: str = POLICY, constraints: Sequence[str] = ()
) -> None:
    """Write a run's first events."""
    kept = asdict(settings)
    log.extend([run_event({**kept, "tools": list(settings.tools)})])
    record.policy(log, policy)
    skills = skills_of(settings)
    for more in (catalogue(skills) if skills else "", MANUAL if settings.status else ""):
        if more:
            record.policy(log, more)
    for text in constraints:
        record.constraint(log, text)
    host_tools = [*([use.SKILL_TOOL] if skills else []), *(LIST_TOOLS if settings.status else ())]
    record.tools(log, [*schemas(settings.tools), *host_tools])
    record.user(log, task)


def default_budget(window: int | None, max_tokens: int, *, exact: bool) -> int:
    """Tokens that a prompt may have. `exact`: whether they are counted with the model's tokenizer. Raises SetupError."""
    window = window or DEFAULT_WINDOW
    budget = int((window - max_tokens) * (1.0 if exact else _ROUGH))
    if budget < 1:
        raise SetupError(
            f"--max-tokens {max_tokens} leaves nothing of the model's window of {window}: give less"
        )
    return budget


def build(
    log: EventLog,
    settings: Settings,
    *,
    jail: Jail,
    shell: Shell | None,
    server: Server,
    watcher: Watcher,
    max_turns: int = 50,
    prices: Prices | None = None,
    oracle: CostOracle | None = None,
    waits_s: Sequence[float] = WAITS_S,
) -> Session:
    """The session of a log that `begin` began. `oracle`: what rewriting a prompt costs (None: tokens are counted, and the
    server is taken to hold the last prompt). Raises SetupError if the tokenizer or the template cannot be read."""
    working_set = make_working_set(settings)
    known = Invalidator(log)
    running = Running(shell, jail, known) if shell is not None else None
    tools = tuple(name for name in settings.tools if name != "run" or running is not None)
    status = _status(log, settings)
    host_tools = HostTools(log, skills_of(settings), None if status is None else status.history)
    strategy = strategies(Workspace(jail.root))[settings.compaction]
    return Session(
        log,
        known=known,
        compactor=Compactor(working_set, budget=settings.budget, strategy=strategy, oracle=oracle),
        settler=Settler(working_set, root=jail.root, prices=prices, oracle=oracle, read=jailed_reader(jail)),
        supervisor=Supervisor(log, known, jail, running, tools, watcher, host_tools.names),
        host_tools=host_tools,
        status=status,
        server=server,
        options=Options({"model": settings.model, **settings.request}, max_turns, waits_s),
        watcher=watcher,
    )


def make_working_set(settings: Settings) -> WorkingSet:
    """Raises SetupError."""
    tokenizer = RoughTokenizer() if settings.tokenizer is None else _tokenizer(settings.tokenizer)
    given = settings.chat_template
    try:
        template = ChatTemplate(PLAIN_TEMPLATE) if given is None else read_template(given)
    except (OSError, UnicodeDecodeError, TemplateError) as error:
        raise SetupError(f"--chat-template {given}: {error}") from None
    return WorkingSet(
        policy=ThreeZones(settings.budget),
        tokenizer=tokenizer,
        template=template,
        techniques=_techniques(settings),
    )


def skills_of(settings: Settings) -> tuple[Skill, ...]:
    """Raises SetupError if one is not written as it must be."""
    if settings.skills is None:
        return ()
    try:
        return load_skills(settings.skills)
    except (SkillError, OSError) as error:
        raise SetupError(f"--skills {error}") from None


def _techniques(settings: Settings) -> Techniques:
    return Techniques(call_counter=settings.status, todo=settings.status)


def _time_sense(settings: Settings) -> TimeSense | None:
    return TimeSense(settings.time_budget_s) if settings.status else None


def _status(log: EventLog, settings: Settings) -> StatusBar | None:
    if not settings.status:
        return None
    return StatusBar(log, techniques=_techniques(settings), time_sense=_time_sense(settings))


def jailed_reader(jail: Jail) -> Callable[[str], tuple[bytes, Version]]:
    """Reads files for the settler, which knows no jail."""

    def read(path: str) -> tuple[bytes, Version]:
        try:
            file = jail.read(path, MOST_BYTES)
        except JailError as error:
            raise OSError(0, str(error)) from None
        if file.size > MOST_BYTES:
            raise OSError(0, f"{path} is too large")
        return file.data, Version(blake3(file.data).hexdigest(), time.time_ns(), file.stamp)

    return read


def _tokenizer(path: str) -> TokenizersAdapter:
    try:
        return TokenizersAdapter.from_file(path)
    except TokenizerError as error:
        raise SetupError(f"--tokenizer {error}") from None
