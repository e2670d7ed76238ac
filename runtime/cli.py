"""The `deeproot` command. Each subcommand's module is loaded only when it is chosen."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from deeproot import __version__
from deeproot.runtime.agent.flags import add_agent
from deeproot.runtime.bench_flags import add_bench
from deeproot.runtime.config_file import expand_config
from deeproot.runtime.explain.flags import add_explain
from deeproot.runtime.flags import add_engine_flags, number, whole
from deeproot.runtime.measure_flags import add_measure
from deeproot.runtime.model_search import found_models
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.serve_flags import add_serve

SHELLS = ("bash", "zsh", "tcsh")
_COMMANDS_WITH_CONFIG = ("serve", "chat")


class _Parser(argparse.ArgumentParser):
    """Reports bad flags in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = build_parser()
    try:
        args = parser.parse_args(with_config(sys.argv[1:] if argv is None else argv, parser))
        if args.module is None:
            parser.print_help(sys.stderr)
            return 2
        code: int = importlib.import_module(args.module).run(args)
    except SetupError as error:
        print(f"deeproot: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="deeproot", description="Serve local language models to agents.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"deeproot {__version__}")
    parser.set_defaults(module=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_serve(commands)
    _add_chat(commands)
    add_agent(commands)
    _add_doctor(commands)
    _add_lint(commands)
    add_explain(commands)
    add_measure(commands)
    add_bench(commands)
    _add_models(commands)
    _add_completion(commands)
    return parser


def with_config(argv: Sequence[str], parser: argparse.ArgumentParser) -> Sequence[str]:
    """The command line with a `--config` file's flags in it, for the commands that take one."""
    if not argv or argv[0] not in _COMMANDS_WITH_CONFIG:
        return argv
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [argv[0], *expand_config(argv[1:], commands.choices[argv[0]])]


def _known_model(model: str) -> str:
    """A path as it is, or the path of a model that goes by this name on this machine."""
    if Path(model).exists():
        return model
    return next((str(found.path) for found in found_models() if found.name == model), model)


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The engine flags of a command line."""
    return EngineOptions(
        model=_known_model(args.model),
        load_format=args.load_format,
        dtype=args.dtype,
        quantization=args.quantization,
        device=args.device,
        threads=args.threads,
        attention_backend=args.attention_backend,
        kv_cache_dtype=args.kv_cache_dtype,
        page_size=args.page_size,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        schedule_policy=args.schedule_policy,
        reserve_output_tokens=args.reserve_output_tokens,
        max_itl_ms=args.max_itl_ms,
        speculative_config=args.speculative_config,
        overlap=args.overlap,
        enforce_eager=args.enforce_eager,
        deterministic=args.deterministic,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        gpu_memory_utilization=args.gpu_memory_utilization,
        chat_template=args.chat_template,
        chat_template_timeout_s=args.chat_template_timeout,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        keep_thinking=args.keep_thinking,
        continuation_memory_bytes=args.continuation_memory_bytes,
        radix_eviction_policy=args.radix_eviction_policy,
        max_lease_s=args.max_lease_s,
        max_leases=args.max_leases,
        max_leased_share=args.max_leased_share,
        seed=args.seed,
    )


def _add_chat(commands: Any) -> None:
    command = commands.add_parser(
        "chat",
        help="chat with a model in the terminal",
        description="Chat with a model in the terminal: one loaded here (--model), or one that is served (--url). "
        "Text that is piped in is one message, and only the reply is written to the output.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.chat_terminal")
    add_engine_flags(command, model_required=False)
    group = command.add_argument_group("chat")
    group.add_argument("--url", help="address of a running server, such as http://127.0.0.1:8000")
    group.add_argument("--api-key", default="", metavar="KEY", help="key for the server")
    group.add_argument("--system", default="", metavar="TEXT", help="system message")
    group.add_argument("--max-tokens", type=whole(1), metavar="N", help="longest reply, in tokens")
    group.add_argument("--temperature", type=number(0, 100), metavar="T", help="0 is greedy")


def _add_doctor(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="say what this machine has and what will be used",
        description="Say what this machine has, which backend and dtype will be used and why, and what would help.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.doctor")
    command.add_argument("--model", metavar="PATH", help="also check this model")
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_lint(commands: Any) -> None:
    command = commands.add_parser(
        "lint",
        help="find what breaks the prefix cache in a log of requests",
        description="Name what keeps a prefix cache from working in a log of chat completion requests (JSON lines)."
        " Exit code 0: nothing found; 1: breaks found; 2: the log cannot be read.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.context.lint_command")
    command.add_argument(
        "log", metavar="FILE|URL|-", help="request log: a path, an http(s) address, or - for standard input"
    )
    command.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json to count with (default: 4 characters a token)"
    )
    command.add_argument(
        "--min-tokens",
        type=whole(0),
        default=1,
        metavar="N",
        help="ignore breaks that cost fewer tokens (default: %(default)s)",
    )
    command.add_argument(
        "--price",
        type=number(0),
        default=3.0,
        metavar="DOLLARS",
        help="of a million input tokens (default: %(default)s)",
    )
    command.add_argument(
        "--price-cached",
        type=number(0),
        default=0.3,
        metavar="DOLLARS",
        help="of a million cached ones (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_models(commands: Any) -> None:
    command = commands.add_parser(
        "models",
        help="list models: served, on this machine, supported",
        description="List what a server has loaded, which models lie on this machine, and what is supported. "
        "A name in the list can be given to --model instead of the path.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.models_command")
    command.add_argument(
        "--url", default="http://127.0.0.1:8000", help="server to ask (default: %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_completion(commands: Any) -> None:
    command = commands.add_parser(
        "completion",
        help="print a script that completes commands and flags in a shell",
        description="Print a script that completes commands and flags. For bash: deeproot completion bash "
        "> ~/.local/share/bash-completion/completions/deeproot",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.completion")
    command.add_argument("shell", choices=SHELLS)
