"""The flags of `deeproot measure`."""

from pathlib import Path
from typing import Any

from deeproot.runtime.flags import number, whole

_POLICIES = ("append_only", "sliding_window", "three_zones")


def add_measure(commands: Any) -> None:
    """Declare the command; its work is done by `context/measure/command.py`."""
    command = commands.add_parser(
        "measure",
        help="measure how the context of agents' runs was kept, from their logs",
        description="Measure logs of agents' runs: task completion, facts joined, stale actions, compression, constraints"
        " kept and violated, cache hits, dollars. Exit code 0, or 2 if a log or a flag cannot be read.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.context.measure.command")
    command.add_argument("logs", metavar="LOG", nargs="+", help="event logs, such as run.db")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    group = command.add_argument_group("what the calls saw")
    group.add_argument("--policy", choices=_POLICIES, default="append_only", help="(default: %(default)s)")
    group.add_argument("--budget", type=whole(1), metavar="N", help="tokens of one call")
    group.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json to count with (default: 4 characters a token)"
    )
    group.add_argument(
        "--chat-template", metavar="FILE", help="the model's chat template (default: a plain one)"
    )
    group.add_argument(
        "--checks",
        type=Path,
        metavar="FILE",
        help="JSON: how to check constraints that say it in no known form",
    )
    _add_prices(command.add_argument_group("prices"))
    floor = command.add_argument_group("prefill floor")
    floor.add_argument("--parameters", type=number(1), metavar="N", help="weights of the model, such as 7e9")
    floor.add_argument("--layers", type=whole(1), metavar="N")
    floor.add_argument("--d-model", type=whole(1), metavar="N")
    floor.add_argument("--device", default="H100 SXM", metavar="NAME", help="(default: %(default)s)")


def _add_prices(group: Any) -> None:
    group.add_argument(
        "--price", type=number(0), default=3.0, metavar="DOLLARS", help="of a million input tokens"
    )
    group.add_argument(
        "--price-cached", type=number(0), default=0.3, metavar="DOLLARS", help="of a million cached ones"
    )
    group.add_argument(
        "--price-output", type=number(0), default=15.0, metavar="DOLLARS", help="of a million output ones"
    )
    group.add_argument(
        "--write-premium",
        type=number(0),
        default=1.0,
        metavar="F",
        help="factor on tokens that are cached anew",
    )
    group.add_argument(
        "--min-cached", type=whole(0), default=0, metavar="N", help="shortest prefix that is cached"
    )
    group.add_argument(
        "--cache-increment",
        type=whole(1),
        default=1,
        metavar="N",
        help="cached prefixes count in multiples of N tokens",
    )
    group.add_argument(
        "--cache-ttl", type=number(0), metavar="SECONDS", help="how long a prefix is kept after its last use"
    )
