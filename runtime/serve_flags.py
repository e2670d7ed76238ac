"""The flags of `deeproot serve` beside the engine's, and what they say."""

import argparse
from pathlib import Path
from typing import Any

from deeproot.runtime.flags import add_engine_flags, number, size, size_or_zero, whole
from deeproot.runtime.foreign_flags import add_foreign_flags
from deeproot.runtime.limit_flags import add_limit_flags, limit_options
from deeproot.runtime.options import LOG_FORMATS, LOG_LEVELS, ServerOptions, SetupError


def add_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve", help="serve a model over HTTP", description="Serve a model over HTTP.", allow_abbrev=False
    )
    command.set_defaults(module="deeproot.runtime.server.serve")
    add_engine_flags(command, model_required=True)
    add_foreign_flags(command)
    add_limit_flags(command)
    group = command.add_argument_group("server")
    default = ServerOptions()
    _add_address(group, default)
    _add_stores(group, default)
    _add_surroundings(group, default)


def _add_address(group: argparse._ArgumentGroup, default: ServerOptions) -> None:
    """Where the server listens, for whom, and what it bears."""
    group.add_argument("--host", default=default.host, help="address to listen on (default: %(default)s)")
    group.add_argument(
        "--port",
        type=whole(0, 65535),
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
        type=number(0, 3600),
        default=default.shutdown_timeout_s,
        metavar="SECONDS",
        help="how long requests may go on after SIGTERM or Ctrl-C (default: %(default)s)",
    )
    group.add_argument(
        "--max-queued-requests",
        type=whole(0),
        default=default.max_queued_requests,
        metavar="N",
        help="requests that may wait; more are answered with 429 (default: %(default)s)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=size,
        default=default.max_body_bytes,
        metavar="SIZE",
        help="largest request body (default: 32MiB)",
    )


def _add_stores(group: argparse._ArgumentGroup, default: ServerOptions) -> None:
    """What it keeps of requests."""
    group.add_argument(
        "--response-store",
        type=Path,
        metavar="FILE",
        help="SQLite file for responses that previous_response_id may name (default: in memory)",
    )
    group.add_argument(
        "--response-store-bytes",
        type=size,
        default=default.response_store_bytes,
        metavar="SIZE",
        help="of stored responses; the least recently used are forgotten (default: 64MiB)",
    )
    group.add_argument(
        "--working-set-store",
        type=Path,
        metavar="FOLDER",
        help="for working sets that clients make, so that they outlive the server (default: in memory)",
    )
    group.add_argument(
        "--max-working-sets",
        type=whole(0),
        default=default.max_working_sets,
        metavar="N",
        help="working sets that one client may have (default: %(default)s)",
    )
    group.add_argument(
        "--working-set-bytes",
        type=size,
        default=default.working_set_bytes,
        metavar="SIZE",
        help="of the events of one client's working sets (default: 64MiB)",
    )
    group.add_argument(
        "--shared-prefixes",
        type=Path,
        metavar="FILE",
        help="beginnings of prompts that all clients share in the cache, as a JSON list (default: none is shared)",
    )
    group.add_argument(
        "--explain-memory-bytes",
        type=size_or_zero,
        default=default.explain_memory_bytes,
        metavar="SIZE",
        help="for the latest sequences, to explain misses by; 0 switches that off (default: 32MiB)",
    )


def _add_surroundings(group: argparse._ArgumentGroup, default: ServerOptions) -> None:
    """Prices, browsers, traces and logs."""
    group.add_argument(
        "--dollars-per-hour",
        type=number(0, 1e6),
        metavar="DOLLARS",
        help="what this machine costs, for the prices of /v1/cache/price (default: not known)",
    )
    group.add_argument(
        "--cors-origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="sites whose pages may use the server, such as https://example.org, or * (default: none)",
    )
    group.add_argument(
        "--allowed-hosts",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names that a server on a loopback address without keys answers to, beside localhost",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send OpenTelemetry traces there, such as http://127.0.0.1:4318/v1/traces (default: none)",
    )
    group.add_argument(
        "--log-level", choices=LOG_LEVELS, default=default.log_level, help="(default: %(default)s)"
    )
    group.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=default.log_format,
        help="lines for people, or a JSON object a line (default: %(default)s)",
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
        response_store=args.response_store,
        response_store_bytes=args.response_store_bytes,
        working_set_store=args.working_set_store,
        max_working_sets=args.max_working_sets,
        working_set_bytes=args.working_set_bytes,
        shared_prefixes=args.shared_prefixes,
        explain_memory_bytes=args.explain_memory_bytes,
        dollars_per_hour=args.dollars_per_hour,
        cors_origins=tuple(args.cors_origins),
        allowed_hosts=tuple(args.allowed_hosts),
        otlp_traces_endpoint=args.otlp_traces_endpoint,
        limits=limit_options(args),
        log_level=args.log_level,
        log_format=args.log_format,
    )


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
