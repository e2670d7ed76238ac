"""Flags of `deeproot serve` that bound what clients may take."""

import argparse

from deeproot.runtime.flags import number, whole
from deeproot.runtime.options import LimitOptions


def add_limit_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "limits (a tenant is an API key; without keys all requests are one tenant's)"
    )
    default = LimitOptions()
    group.add_argument(
        "--tenant-max-requests",
        type=whole(1),
        metavar="N",
        help="requests of one tenant at a time; more are answered with 429",
    )
    group.add_argument(
        "--tenant-requests-per-minute",
        type=whole(1),
        metavar="N",
        help="requests of one tenant in a minute; more are answered with 429",
    )
    group.add_argument(
        "--tenant-tokens-per-minute",
        type=whole(1),
        metavar="N",
        help="computed prompt tokens and output tokens of one tenant in a minute; cached tokens are free",
    )
    group.add_argument(
        "--request-timeout",
        type=number(0.001, 7 * 24 * 3600),
        metavar="SECONDS",
        help="end requests whose answer is not complete by then (default: no limit)",
    )
    group.add_argument(
        "--upload-timeout",
        type=number(0.001, 3600),
        default=default.upload_timeout_s,
        metavar="SECONDS",
        help="how long a request's body may take to arrive (default: %(default)s)",
    )
    group.add_argument(
        "--slow-reader-timeout",
        type=number(0.001, 3600),
        default=default.slow_reader_timeout_s,
        metavar="SECONDS",
        help="cut off a client that does not read its stream for so long (default: %(default)s)",
    )
    group.add_argument(
        "--keep-alive-timeout",
        type=whole(1),
        default=default.keep_alive_timeout_s,
        metavar="SECONDS",
        help="close a connection that is idle between requests for so long; more than clients and proxies keep theirs "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--stuck-after",
        type=number(0.001, 3600),
        default=default.stuck_after_s,
        metavar="SECONDS",
        help="name a step of the engine that takes so long in the log (default: %(default)s)",
    )


def limit_options(args: argparse.Namespace) -> LimitOptions:
    """The limits of a command line."""
    return LimitOptions(
        concurrent_requests=args.tenant_max_requests,
        requests_per_minute=args.tenant_requests_per_minute,
        tokens_per_minute=args.tenant_tokens_per_minute,
        request_timeout_s=args.request_timeout,
        upload_timeout_s=args.upload_timeout,
        slow_reader_timeout_s=args.slow_reader_timeout,
        keep_alive_timeout_s=args.keep_alive_timeout,
        stuck_after_s=args.stuck_after,
    )
