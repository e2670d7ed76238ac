"""Groups of flags that several benchmarks share."""

from pathlib import Path
from typing import Any

from deeproot.runtime.flags import number, whole


def add_rounds(group: Any) -> None:
    """How often, and the short form."""
    group.add_argument(
        "--rounds",
        type=whole(1),
        default=3,
        metavar="N",
        help="times that each is measured (default: %(default)s)",
    )
    group.add_argument("--quick", action="store_true", help="a short form, for a look in under 3 minutes")


def add_result(command: Any) -> None:
    """Where the result goes."""
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write result.json, report.html and plots there"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def add_targets(group: Any) -> None:
    """Which servers are timed."""
    group.add_argument("--url", metavar="URL", help="of a server to time, such as http://127.0.0.1:8000/v1")
    group.add_argument(
        "--compare",
        nargs="+",
        metavar="URL=NAME",
        help="servers to time in turns; the first is what others are held to",
    )
    group.add_argument("--api-key", default="", metavar="KEY", help="sent to all of them")
    group.add_argument("--served-model", metavar="NAME", help="(default: the first that each server names)")


def add_servers(command: Any) -> None:
    """Servers that are timed, and the load."""
    group = command.add_argument_group("servers")
    add_targets(group)
    group.add_argument(
        "--turns", type=whole(1), metavar="N", help="cut sessions off at N turns, and leave out shorter ones"
    )
    group.add_argument(
        "--arrivals",
        choices=("closed", "poisson", "recorded"),
        default="closed",
        help="closed: a session's next ask when its last is answered; else at times of their own (default: %(default)s)",
    )
    group.add_argument(
        "--concurrency",
        type=whole(1),
        default=1,
        metavar="N",
        help="sessions at a time, of a closed load (default: 1)",
    )
    group.add_argument(
        "--gaps",
        choices=("none", "recorded"),
        default="none",
        help="between a session's asks, of a closed load (default: %(default)s)",
    )
    group.add_argument(
        "--rate",
        type=number(0.001),
        default=1.0,
        metavar="R",
        help="asks a second, of a Poisson load (default: 1)",
    )
    group.add_argument(
        "--speed",
        type=number(0.001),
        default=1.0,
        metavar="X",
        help="recorded seconds in one second (default: 1)",
    )
    _add_limits(group)
    add_rounds(group)


def _add_limits(group: Any) -> None:
    """What asks and answers are held to."""
    group.add_argument(
        "--max-tokens", type=whole(1), default=64, metavar="N", help="of an answer (default: %(default)s)"
    )
    group.add_argument(
        "--max-prompt-tokens",
        type=whole(1),
        default=4000,
        metavar="N",
        help="where prompts of token ids are cut off (default: %(default)s)",
    )
    group.add_argument(
        "--ttft-limit-ms",
        type=number(0),
        default=1000,
        metavar="MS",
        help="for goodput (default: %(default)s)",
    )
    group.add_argument(
        "--tpot-limit-ms",
        type=number(0),
        default=100,
        metavar="MS",
        help="for goodput (default: %(default)s)",
    )


def add_runs(group: Any, kind: str, count: int) -> None:
    """Agents' runs; `kind` and `count` are the defaults."""
    group.add_argument(
        "--runs",
        choices=("airline", "made", "worked"),
        default=kind,
        help="recorded; made; made with files, skills, status and thinking (default: %(default)s)",
    )
    group.add_argument(
        "--sessions", type=whole(1), default=count, metavar="N", help="how many (default: %(default)s)"
    )
    group.add_argument(
        "--turns", type=whole(1), default=50, metavar="N", help="of made runs (default: %(default)s)"
    )
    group.add_argument(
        "--seed", type=whole(0), default=1, metavar="N", help="of made runs and tasks (default: %(default)s)"
    )
    group.add_argument(
        "--file", type=Path, nargs="+", metavar="FILE", help="SWE-agent trajectories or event logs instead"
    )


def add_tokens(group: Any) -> None:
    """What counts tokens."""
    group.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json to count with (default: 4 characters a token)"
    )
    group.add_argument(
        "--chat-template", metavar="FILE", help="the model's chat template (default: a plain one)"
    )


def add_output(command: Any) -> None:
    """Prices, and where the result goes."""
    command.add_argument(
        "--prices", type=Path, metavar="FILE", help="price tables as JSON (default: our own)"
    )
    add_result(command)
