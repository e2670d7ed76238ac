"""The flags of `deeproot bench`; no heavy imports, so that the command line starts fast."""

from pathlib import Path
from typing import Any

from deeproot.runtime.flags import add_engine_flags, number, whole

WORKLOADS = ("airline", "agents", "mooncake")
FORMS = ("requests", "runs", "sharegpt", "swe-agent", "blocks")


def add_bench(commands: Any) -> None:
    """Declare the benchmarks; their work is done by modules of `bench`."""
    command = commands.add_parser(
        "bench",
        help="measure prefill and servers, and count what layouts and caches cost",
        description="Benchmarks. Every number that they give says what it is: measured on this device, counted exactly, or a"
        " floor from the cost model.",
        allow_abbrev=False,
    )
    kinds = command.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_prefill(kinds)
    _add_replay(kinds)
    _add_layouts(kinds)
    _add_compare(kinds)


def _add_compare(kinds: Any) -> None:
    command = kinds.add_parser(
        "compare",
        help="two results, and what differs beyond noise",
        description="Compare two results of one benchmark, quantity by quantity. Counted ones are compared exactly, measured"
        " ones by a rank test. Exit code 0; 1 with --fail-if-worse if something is worse; 2 if a file cannot be read.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.bench.report.compare_command")
    command.add_argument("a", type=Path, metavar="A.json", help="a result.json that --out has written")
    command.add_argument("b", type=Path, metavar="B.json", help="another one of the same command")
    command.add_argument(
        "--fail-if-worse", action="store_true", help="exit with 1 if a quantity of B is worse than A's"
    )
    _add_result(command)


def _add_prefill(kinds: Any) -> None:
    command = kinds.add_parser(
        "prefill",
        help="time to first token by length, cached share, chunk and batch, beside the floor",
        description="Load a model in this process and time its prefill: by prompt length, by cached share, by chunk size and"
        " by batch, beside the floor of the kernels' cost model at the rates that this device reaches. Exit code 0, or 2"
        " if a flag cannot be served.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.bench.prefill.command")
    add_engine_flags(command, model_required=True)
    group = command.add_argument_group("what is measured")
    group.add_argument(
        "--lengths", type=whole(1), nargs="+", metavar="N", help="prompt tokens (default: 128 to the window)"
    )
    group.add_argument(
        "--shares",
        type=whole(0, 99),
        nargs="+",
        default=[0, 50, 90, 99],
        metavar="PERCENT",
        help="of a prompt that are cached (default: 0 50 90 99)",
    )
    group.add_argument(
        "--chunks",
        type=whole(1),
        nargs="+",
        metavar="N",
        help="tokens a step (default: a quarter and all of it)",
    )
    group.add_argument(
        "--batches", type=whole(2), nargs="+", default=[4], metavar="N", help="prompts at once (default: 4)"
    )
    _add_rounds(group)
    _add_result(command)


def _add_rounds(group: Any) -> None:
    group.add_argument(
        "--rounds",
        type=whole(1),
        default=3,
        metavar="N",
        help="times that each is measured (default: %(default)s)",
    )
    group.add_argument("--quick", action="store_true", help="a short form, for a look in under 3 minutes")


def _add_result(command: Any) -> None:
    command.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write result.json, report.html and plots there"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_replay(kinds: Any) -> None:
    command = kinds.add_parser(
        "replay",
        help="a workload against servers, or through models of prefix caches",
        description="Without a server: serve a workload's calls, one after another, from our prefix tree, from models of"
        " vLLM's and SGLang's, and from caches under hosted models' rules and prices. With --url or --compare: send them to"
        " OpenAI-compatible servers, in turns, and time the answers. Exit code 0, or 2 if a file, flag or server cannot be"
        " used.",
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
    _add_servers(command)
    group = command.add_argument_group("cache models")
    group.add_argument(
        "--cache-tokens", type=whole(1), metavar="N", help="memory of the engines' caches (default: no limit)"
    )
    _add_output(command)


def _add_servers(command: Any) -> None:
    group = command.add_argument_group("servers")
    group.add_argument("--url", metavar="URL", help="of a server to time, such as http://127.0.0.1:8000/v1")
    group.add_argument(
        "--compare",
        nargs="+",
        metavar="URL=NAME",
        help="servers to time in turns; the first is what others are held to",
    )
    group.add_argument("--api-key", default="", metavar="KEY", help="sent to all of them")
    group.add_argument("--served-model", metavar="NAME", help="(default: the first that each server names)")
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
    _add_rounds(group)


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
    _add_result(command)
