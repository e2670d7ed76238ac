"""The flags of `deeproot bench`; no heavy imports, so that the command line starts fast."""

from pathlib import Path
from typing import Any

from deeproot.runtime.flags import whole

WORKLOADS = ("airline", "agents", "mooncake")
FORMS = ("requests", "runs", "sharegpt", "swe-agent", "blocks")


def add_bench(commands: Any) -> None:
    """Declare the benchmarks; their work is done by modules of `bench`."""
    command = commands.add_parser(
        "bench",
        help="count what layouts and caches cost",
        description="Benchmarks that need neither model nor server: they count tokens exactly.",
        allow_abbrev=False,
    )
    kinds = command.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_replay(kinds)
    _add_layouts(kinds)


def _add_replay(kinds: Any) -> None:
    command = kinds.add_parser(
        "replay",
        help="a workload through models of prefix caches",
        description="Serve a workload's calls, one after another, from our prefix tree, from models of vLLM's and SGLang's,"
        " and from caches under hosted models' rules and prices. Exit code 0, or 2 if a file or flag cannot be read.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.bench.cachesim.replay_command")
    group = command.add_argument_group("workload")
    group.add_argument("--workload", choices=WORKLOADS, default="agents", help="(default: %(default)s)")
    group.add_argument(
        "--sessions",
        type=whole(1),
        default=20,
        metavar="N",
        help="how many of them; of mooncake, requests (default: %(default)s)",
    )
    group.add_argument(
        "--seed", type=whole(0), default=1, metavar="N", help="of agents (default: %(default)s)"
    )
    group.add_argument("--file", type=Path, metavar="FILE", help="a file instead")
    group.add_argument(
        "--form",
        choices=FORMS,
        default="requests",
        help="what the file holds: OpenAI chat completion requests, one a line; whole conversations; ShareGPT; a SWE-agent"
        " trajectory; block ids as in Mooncake's traces (default: %(default)s)",
    )
    _add_tokens(group)
    group = command.add_argument_group("caches")
    group.add_argument(
        "--cache-tokens", type=whole(1), metavar="N", help="memory of the engines' caches (default: no limit)"
    )
    _add_output(command)


def _add_layouts(kinds: Any) -> None:
    command = kinds.add_parser(
        "layouts",
        help="ways to lay out the context of agents' runs, and what each costs",
        description="Assemble every call of agents' runs under each layout policy, and serve them from each cache; or, with"
        " --example, compute the worked examples. Exit code 0; 1 if an example does not come out; 2 if a file or flag"
        " cannot be read.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.bench.cachesim.layouts_command")
    command.add_argument("--example", metavar="NAME", help="compute one worked example, or all")
    group = command.add_argument_group("runs")
    group.add_argument(
        "--runs",
        choices=("airline", "made"),
        default="airline",
        help="recorded or made (default: %(default)s)",
    )
    group.add_argument(
        "--sessions", type=whole(1), default=25, metavar="N", help="how many (default: %(default)s)"
    )
    group.add_argument(
        "--turns", type=whole(1), default=50, metavar="N", help="of made runs (default: %(default)s)"
    )
    group.add_argument(
        "--seed", type=whole(0), default=1, metavar="N", help="of made runs (default: %(default)s)"
    )
    group.add_argument(
        "--file", type=Path, nargs="+", metavar="FILE", help="SWE-agent trajectories or event logs instead"
    )
    group.add_argument(
        "--budget", type=whole(1), metavar="N", help="tokens of one call, for policies that have a budget"
    )
    _add_tokens(group)
    _add_output(command)


def _add_tokens(group: Any) -> None:
    group.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json to count with (default: 4 characters a token)"
    )
    group.add_argument(
        "--chat-template", metavar="FILE", help="the model's chat template (default: a plain one)"
    )


def _add_output(command: Any) -> None:
    command.add_argument(
        "--prices", type=Path, metavar="FILE", help="price tables as JSON (default: our own)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
