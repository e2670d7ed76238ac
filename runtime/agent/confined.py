"""Runs one command where it sees the workspace and the system's programs, and reaches nothing else.

Started as a script of its own, `python -I -S confined.py SPEC`, so that it is small and imports nothing of ours. It sets
up namespaces (no network, its own processes, its own /tmp and /run) and Landlock rules (which files), as far as SPEC says,
and then becomes the command. Whatever SPEC asks for and cannot be had ends it with code 125 and a line on standard error:
a command never runs with less than what was asked.

Linux. Constants: include/uapi/linux/{sched,landlock,prctl,mount}.h; the numbers of system calls that are
used here are the same on every architecture.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

CANNOT = 125
"""Exit code where the confinement failed and the command was not run."""
FILES, PROCESSES, NO_NETWORK = "files", "processes", "no network"
"""What SPEC can ask for: only these files; processes, /tmp and /run of its own; nobody to talk to."""
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many of the rights to files each version of Landlock's interface knows; later ones as 5."""
_NEWEST = 5
_NEEDED = 3
"""Before version 3, files outside could be truncated."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TO_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | (1 << 14) | (1 << 15)
_KNOWS_TCP, _TCP = 4, 3
_SCOPES = 3
_IFF_UP, _SIOCSIFFLAGS = 1, 0x8914
_HIDDEN = ("/tmp", "/var/tmp", "/run", "/dev/shm")

_libc = ctypes.CDLL(None, use_errno=True)


class CannotConfineError(Exception):
    """What was asked for cannot be had here."""


def main() -> int:
    """SPEC: JSON with `root`, `private` (a folder for /tmp), `reads`, `writes` (paths), `use` , `argv`."""
    spec = json.loads(sys.argv[1])
    try:
        _die_with_parent()
        if PROCESSES in spec["use"]:
            _unshare(_NEWNET if NO_NETWORK in spec["use"] else 0)
            child = os.fork()
            if child:
                return _status(os.waitpid(child, 0)[1])
            _die_with_parent()
            _own_view(spec)
        if FILES in spec["use"]:
            _restrict_files(spec)
    except (OSError, CannotConfineError) as error:
        print(f"cannot confine the command: {error}", file=sys.stderr, flush=True)
        return CANNOT
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if PROCESSES not in spec["use"]:
        _become(spec)
    return _run_as_init(spec)


def _run_as_init(spec: dict[str, Any]) -> int:
    """Be the first process of the namespace: start the command, bury orphans, and end with it, and all with us."""
    command = os.fork()
    if not command:
        _become(spec)
    while True:
        ended, status = os.wait()
        if ended == command:
            return _status(status)


def _become(spec: dict[str, Any]) -> None:
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(spec["root"])
        os.execv(spec["argv"][0], spec["argv"])
    except OSError as error:
        print(f"cannot run {spec['argv'][0]}: {error}", file=sys.stderr, flush=True)
        os._exit(CANNOT)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    """When whoever started us ends, however that ends, so do we."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _unshare(network: int) -> None:
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEWUSER | _NEWNS | _NEWPID | _NEWIPC | network), "unshare")
    # The superuser keeps everybody's files as they are; others may only map themselves.
    whole = "0 0 4294967295"
    if user != 0 or not (_write("/proc/self/uid_map", whole) and _write("/proc/self/gid_map", whole)):
        _write("/proc/self/setgroups", "deny")
        for name, number in (("uid_map", user), ("gid_map", group)):
            if not _write(f"/proc/self/{name}", f"{number} {number} 1"):
                raise CannotConfineError(f"/proc/self/{name} cannot be written")


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return False
    return True


def _own_view(spec: dict[str, Any]) -> None:
    """Its own /tmp, /run and /proc, all else but the workspace read only, and a loopback that leads nowhere else."""
    keep = [spec["root"], *spec["reads"], *spec["writes"]]
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in keep if os.path.exists(path)}
    private = os.open(spec["private"], os.O_PATH | os.O_CLOEXEC)
    # Landlock leaves alone who may do what with a file, and its times: nothing of that can be changed either.
    _set_read_only("/", True)
    for hidden in (path for path in _HIDDEN if os.path.isdir(path)):
        place = os.path.realpath(hidden)
        if hidden == "/tmp":
            _bind(private, place)
            _set_read_only(place, False)
        else:
            _mount("tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV)
        for path, descriptor in held.items():
            if path.startswith(place + "/"):
                _make_place(path, is_folder=os.path.isdir(f"/proc/self/fd/{descriptor}"))
                _bind(descriptor, path)
    if spec["root"] in held:
        _bind(held[spec["root"]], spec["root"])
        _set_read_only(spec["root"], False)
    with contextlib.suppress(OSError):
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    with contextlib.suppress(OSError), socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _make_place(path: str, *, is_folder: bool) -> None:
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC))


def _bind(descriptor: int, place: str) -> None:
    _mount(f"/proc/self/fd/{descriptor}", place, None, _MS_BIND | _MS_REC)


def _set_read_only(place: str, wanted: bool) -> None:
    """A mount, and all below it if it is to be read only."""
    attributes = struct.pack("QQQQ", _READ_ONLY if wanted else 0, 0 if wanted else _READ_ONLY, 0, 0)
    flags = _AT_RECURSIVE if wanted else 0
    result = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, place.encode(), flags, attributes, len(attributes))
    _check(result, f"mount_setattr of {place}")


def _mount(source: str | None, place: str, kind: str | None, flags: int) -> None:
    words = [None if word is None else word.encode() for word in (source, place, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), None), f"mount on {place}")


def _restrict_files(spec: dict[str, Any]) -> None:
    """Landlock: all of the workspace and of the private folder, no devices made; reading and running for `reads`."""
    version = _libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if version < _NEEDED:
        raise CannotConfineError(f"Landlock is {version}, and {_NEEDED} is needed (Linux 6.2)")
    handled = (1 << _RIGHTS[min(version, _NEWEST)]) - 1
    # Where it has a network of its own, it may use that.
    apart = PROCESSES in spec["use"] or NO_NETWORK not in spec["use"]
    network = _TCP if version >= _KNOWS_TCP and not apart else 0
    scopes = _SCOPES if version >= 6 else 0
    attributes = struct.pack("QQQ", handled, network, scopes)
    size = 8 if version < _KNOWS_TCP else 16 if version < 6 else 24
    rules = _libc.syscall(_CREATE_RULESET, attributes[:size], size, 0)
    _check(rules, "landlock_create_ruleset")
    inside = handled & ~(_MAKE_CHAR | _MAKE_BLOCK)
    _allow(rules, spec["root"], inside)
    for path in _HIDDEN if PROCESSES in spec["use"] else (spec["private"],):
        _allow(rules, path, inside)
    for path in spec["reads"]:
        _allow(rules, path, handled & _READ)
    for path in spec["writes"]:
        _allow(rules, path, handled & (_READ | _TO_FILES))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _check(_libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    """What is missing is left out."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
        rights &= _TO_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    _check(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
    os.close(descriptor)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main())
