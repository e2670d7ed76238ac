"""How much memory this process may still take."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can be taken without swapping, by the machine's account and its container's; None if unknown."""
    limits = [
        free for free in (_available_on_machine(meminfo), _available_in_cgroup(cgroup)) if free is not None
    ]
    return min(limits, default=None)


def total_memory(meminfo: Path = _MEMINFO) -> int | None:
    """Bytes of memory that the machine has; None if unknown."""
    return _meminfo_entry(meminfo, "MemTotal")


def _available_on_machine(meminfo: Path) -> int | None:
    return _meminfo_entry(meminfo, "MemAvailable")


def _meminfo_entry(meminfo: Path, name: str) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None


def _available_in_cgroup(cgroup: Path) -> int | None:
    """What a container's limit leaves (cgroup v2, then v1); pages of files in the cache count as free."""
    for limit_name, used_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (cgroup / limit_name).read_text().strip()
            used = int((cgroup / used_name).read_text())
            stat = (cgroup / limit_name).with_name("memory.stat").read_text()
        except (OSError, ValueError):
            continue
        if limit.isdecimal():
            cached = dict(line.split() for line in stat.splitlines()).get(cache_key, "0")
            return max(0, int(limit) - used + int(cached))
    return None
