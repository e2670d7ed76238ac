"""Where the run is: what a model cannot know and would otherwise guess."""

import os
import platform
from dataclasses import dataclass
from typing import Self

from deeproot.runtime.context.envelope import iso_time
from deeproot.runtime.context.status.reading import Reading


@dataclass(frozen=True, slots=True)
class Environment:
    """The state of the system in which the tools run; empty fields are not shown."""

    cwd: str = ""
    system: str = ""
    shell: str = ""
    python: str = ""

    @classmethod
    def here(cls, cwd: str, shell: str = "") -> Self:
        """That of this process. `cwd`: the folder of the agent's shell, which is not always the process's."""
        return cls(
            cwd,
            f"{platform.system()} {platform.machine()}",
            os.path.basename(shell),
            platform.python_version(),
        )

    def readings(self, now_ns: int, user_ns: int | None) -> list[Reading]:
        """`now_ns`: nanoseconds since 1970; `user_ns`: when the user last spoke."""
        lines = [Reading("time", iso_time(now_ns))]
        if user_ns is not None:
            lines.append(Reading("since the user spoke", spell_seconds((now_ns - user_ns) / 1e9)))
        named = (("cwd", self.cwd), ("system", self.system), ("shell", self.shell), ("python", self.python))
        return lines + [Reading(key, value) for key, value in named if value]


def spell_seconds(seconds: float) -> str:
    """A duration as people say it: 0.5 s, 12 s, 3 min, 2 h."""
    if seconds < 0.001:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
