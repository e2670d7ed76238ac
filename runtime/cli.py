"""The `deeproot` command. Each subcommand's module is loaded only when it is chosen."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from deeproot import __version__
from deeproot.runtime.options import (
    DEVICES,
    DTYPES,
    LOAD_FORMATS,
    LOG_LEVELS,
    PAGE_SIZES,
    EngineOptions,
    ServerOptions,
    SetupError,
    parse_bytes,
)

Number = TypeVar("Number", int, float)


class _Parser(argparse.ArgumentParser):
    """Reports bad flags in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.module is None:
        parser.print_help(sys.stderr)
        return 2
    try:
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
    _add_serve(commands)
    _add_chat(commands)
    _add_doctor(commands)
    _add_lint(commands)
    return parser


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The engine flags of a command line."""
    return EngineOptions(
        model=args.model,
        load_format=args.load_format,
        dtype=args.dtype,
        device=args.device,
        page_size=args.page_size,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        chat_template=args.chat_template,
        seed=args.seed,
    )


def server_options(args: argparse.Namespace) -> ServerOptions:
    """The server flags of a command line."""
    return ServerOptions(
        host=args.host,
        port=args.port,
        served_model_names=tuple(args.served_model_name),
        api_keys=(*args.api_key, *_keys_in_file(args.api_key_file)),
        shutdown_timeout_s=args.shutdown_timeout,
        max_queued_requests=args.max_queued_requests,
        max_body_bytes=args.max_body_bytes,
        log_level=args.log_level,
    )


def _add_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve", help="serve a model over HTTP", description="Serve a model over HTTP.", allow_abbrev=False
    )
    command.set_defaults(module="deeproot.runtime.server.serve")
    _add_engine_flags(command, model_required=True)
    group = command.add_argument_group("server")
    default = ServerOptions()
    group.add_argument("--host", default=default.host, help="address to listen on (default: %(default)s)")
    group.add_argument(
        "--port",
        type=_whole(0, 65535),
        default=default.port,
        help="0 takes any free port (default: %(default)s)",
    )
    group.add_argument(
        "--served-model-name",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names that requests may use for the model",
    )
    group.add_argument(
        "--api-key", action="extend", nargs="+", default=[], metavar="KEY", help="ask requests for a key"
    )
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file with one key a line")
    group.add_argument(
        "--shutdown-timeout",
        type=_number(0, 3600),
        default=default.shutdown_timeout_s,
        metavar="SECONDS",
        help="how long requests may go on after SIGTERM or Ctrl-C (default: %(default)s)",
    )
    group.add_argument(
        "--max-queued-requests",
        type=_whole(0),
        default=default.max_queued_requests,
        metavar="N",
        help="requests that may wait; more are answered with 429 (default: %(default)s)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=_size,
        default=default.max_body_bytes,
        metavar="SIZE",
        help="largest request body (default: 32MiB)",
    )
    group.add_argument(
        "--log-level", choices=LOG_LEVELS, default=default.log_level, help="(default: %(default)s)"
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
    _add_engine_flags(command, model_required=False)
    group = command.add_argument_group("chat")
    group.add_argument("--url", help="address of a running server, such as http://127.0.0.1:8000")
    group.add_argument("--api-key", default="", metavar="KEY", help="key for the server")
    group.add_argument("--system", default="", metavar="TEXT", help="system message")
    group.add_argument("--max-tokens", type=_whole(1), metavar="N", help="longest reply, in tokens")
    group.add_argument("--temperature", type=_number(0, 100), metavar="T", help="0 is greedy")


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
        type=_whole(0),
        default=1,
        metavar="N",
        help="ignore breaks that cost fewer tokens (default: %(default)s)",
    )
    command.add_argument(
        "--price",
        type=_number(0),
        default=3.0,
        metavar="DOLLARS",
        help="of a million input tokens (default: %(default)s)",
    )
    command.add_argument(
        "--price-cached",
        type=_number(0),
        default=0.3,
        metavar="DOLLARS",
        help="of a million cached ones (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _add_engine_flags(command: argparse.ArgumentParser, *, model_required: bool) -> None:
    default = EngineOptions(model="")
    group = command.add_argument_group("model and engine")
    group.add_argument(
        "--model", required=model_required, metavar="PATH", help="a GGUF file or a model folder"
    )
    group.add_argument(
        "--load-format", choices=LOAD_FORMATS, default=default.load_format, help="(default: auto)"
    )
    group.add_argument(
        "--dtype", choices=DTYPES, default=default.dtype, help="of weights and KV (default: auto)"
    )
    group.add_argument("--device", choices=DEVICES, default=default.device, help="(default: auto)")
    group.add_argument("--chat-template", type=Path, metavar="FILE", help="Jinja template to use for chats")
    group.add_argument(
        "--max-model-len", type=_whole(1), metavar="N", help="tokens of prompt and output together"
    )
    group.add_argument(
        "--max-num-seqs",
        type=_whole(1),
        default=default.max_num_seqs,
        metavar="N",
        help="requests that run at a time (default: %(default)s)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=_whole(1),
        default=default.max_num_batched_tokens,
        metavar="N",
        help="tokens computed in a step at most (default: %(default)s)",
    )
    group.add_argument(
        "--page-size",
        "--block-size",
        type=int,
        choices=PAGE_SIZES,
        default=default.page_size,
        help="tokens a page of the KV cache (default: %(default)s)",
    )
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=_size,
        metavar="SIZE",
        help="memory for the KV cache, such as 4GiB or 512M (default: a share of what is free)",
    )
    group.add_argument("--seed", type=int, default=default.seed, help="(default: %(default)s)")


def _keys_in_file(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        keys = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"--api-key-file {path} cannot be read: {error}") from None
    if not keys:
        raise SetupError(f"--api-key-file {path} holds no key: write one a line")
    return keys


def _checked(
    convert: Callable[[str], Number], low: float, high: float | None, kind: str
) -> Callable[[str], Number]:
    def parse(text: str) -> Number:
        try:
            value = convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind}") from None
        if not (low <= value and (high is None or value <= high)):
            limits = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {text}")
        return value

    return parse


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    return _checked(int, low, high, "a whole number")


def _number(low: float, high: float | None = None) -> Callable[[str], float]:
    return _checked(float, low, high, "a number")


def _size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError("must be more than 0 bytes")
    return size
