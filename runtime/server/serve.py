"""`deeproot serve`, up to the point where something heavy has to be imported."""

import argparse
import errno
import importlib
import socket

from deeproot.runtime.cli import engine_options
from deeproot.runtime.logs import set_up_logging
from deeproot.runtime.options import ServerOptions, SetupError, check_files
from deeproot.runtime.serve_flags import server_options


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; returns the exit code. Raises SetupError when it cannot start."""
    engine, server = engine_options(args), server_options(args)
    set_up_logging(server.log_level, server.log_format)
    check_files(engine)
    listener = bind(server)
    # Torch takes seconds to import: what is wrong with the flags has been said by now, and the port is ours.
    process = importlib.import_module("deeproot.runtime.server.process")
    code: int = process.serve_until_signal(engine, server, listener)
    return code


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket. Raises SetupError that says why there can be none."""
    where = f"--host {options.host} --port {options.port}"
    try:
        found = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise SetupError(f"cannot listen on {where}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SetupError(
                f"port {options.port} on {options.host} is in use: stop what uses it, or choose another with --port"
            ) from None
        raise SetupError(f"cannot listen on {where}: {error.strerror}") from None
    return listener
