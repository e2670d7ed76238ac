"""The flags of `deeproot bench`; no heavy imports, so that the command line starts fast."""

from pathlib import Path
from typing import Any

from deeproot.runtime.bench_flag_groups import (
    add_output,
    add_result,
    add_rounds,
    add_runs,
    add_servers,
    add_tokens,
)
from deeproot.runtime.flags import add_engine_flags, number, whole

WORKLOADS = ("airline", "agents", "mooncake")
DEVICES = ("H100 SXM", "H100 PCIe", "H200", "A100", "L40S", "CPU")
"""As in `kernels.devices`; a test compares."""
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
    _add_window(kinds)
    _add_compare(kinds)


def _add_window(kinds: Any) -> None:
    command = kinds.add_parser(
        "window",
        help="how much of a window is usable",
        description="With --url: put needles, counting, rule and state tasks of growing length to a model, with and without a"
        " status bar. Without: assemble runs under growing budgets, and count what of the evidence that later actions need is"
        " there. Exit code 0, or 2 if a file, flag or server cannot be used.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.bench.window.command")
    group = command.add_argument_group("a model")
    group.add_argument("--url", metavar="URL", help="of a server, such as http://127.0.0.1:8000/v1")
    group.add_argument("--api-key", default="", metavar="KEY", help="sent to it")
    group.add_argument("--served-model", metavar="NAME", help="(default: the first that it names)")
    group.add_argument(
        "--lengths",
        type=whole(64),
        nargs="+",
        default=[512, 1024, 2048, 4096],
        metavar="N",
        help="of prompts, in tokens (default: 512 1024 2048 4096)",
    )
    group.add_argument(
        "--depths",
        type=number(0, 1),
        nargs="+",
        default=[0.0, 0.5, 1.0],
        metavar="SHARE",
        help="at which needles lie (default: 0 0.5 1)",
    )
    group.add_argument(
        "--repeats", type=whole(1), default=3, metavar="N", help="of each task, length and depth (default: 3)"
    )
    group.add_argument(
        "--concurrency", type=whole(1), default=1, metavar="N", help="asks at a time (default: 1)"
    )
    group = command.add_argument_group("runs")
    add_runs(group, "worked", 3)
    group.add_argument(
        "--budgets",
        type=whole(1),
        nargs="+",
        default=[6000, 8000, 12000, 16000, 24000, 32000],
        metavar="N",
        help="tokens of one call (default: 6000 to 32000)",
    )
    group.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json (default: 4 characters a token)")
    group = command.add_argument_group("both")
    group.add_argument(
        "--threshold",
        type=number(0, 1),
        default=0.9,
        metavar="SHARE",
        help="that M* must keep (default: 0.9)",
    )
    group.add_argument("--quick", action="store_true", help="a short form, for a look in under 3 minutes")
    add_result(command)


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
    add_result(command)


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
    add_rounds(group)
    add_result(command)


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
    add_tokens(group)
    add_servers(command)
    group = command.add_argument_group("cache models")
    group.add_argument(
        "--cache-tokens", type=whole(1), metavar="N", help="memory of the engines' caches (default: no limit)"
    )
    add_output(command)


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
    add_runs(group, "airline", 25)
    group.add_argument(
        "--budget", type=whole(1), metavar="N", help="tokens of one call, for policies that have a budget"
    )
    group.add_argument(
        "--ablate",
        action="store_true",
        help="three zones with one part off at a time, and what each was worth",
    )
    group.add_argument("--quick", action="store_true", help="two runs, made ones of 12 turns")
    group.add_argument(
        "--url", metavar="URL", help="with --ablate: a server whose model the injection matrix asks"
    )
    group.add_argument("--api-key", default="", metavar="KEY", help="sent to it")
    add_tokens(group)
    group = command.add_argument_group("time")
    group.add_argument(
        "--model", metavar="PATH", help="measure TTFT on the engine with this model, and count its tokens"
    )
    group.add_argument(
        "--floor-device", choices=DEVICES, default="H100 SXM", help="of the TTFT floor (default: %(default)s)"
    )
    group.add_argument(
        "--floor-parameters", type=number(1), default=8e9, metavar="N", help="of a dense model (default: 8e9)"
    )
    group.add_argument(
        "--floor-layers", type=whole(1), default=32, metavar="N", help="(default: %(default)s)"
    )
    group.add_argument(
        "--floor-d-model", type=whole(1), default=4096, metavar="N", help="(default: %(default)s)"
    )
    add_output(command)
