"""What `search` does: a process of its own looks, since a pattern can take for ever."""

import asyncio
import json
import re
import sys
import time
from contextlib import suppress

from deeproot.runtime.agent.arguments import BadCallError, Search
from deeproot.runtime.agent.jail import Jail
from deeproot.runtime.agent.outcome import Outcome
from deeproot.runtime.agent.uncancelled import uncancelled
from deeproot.runtime.context.invalidation.entities import Version, file_entity

_PROGRAM = "deeproot.runtime.agent.search_process"
_SEARCH_S = 20.0


async def search(jail: Jail, asked: Search) -> Outcome:
    """Lines that match, as `path:line: text`. Raises BadCallError."""
    try:
        re.compile(asked.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadCallError(
            f"wrong arguments of search: pattern: {error}; escape what is meant literally"
        ) from None
    starting = asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", _PROGRAM, jail.root, json.dumps([asked.pattern, asked.path]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    process, cancelled = await uncancelled(starting)
    try:
        if cancelled:
            raise asyncio.CancelledError
        async with asyncio.timeout(_SEARCH_S):
            found, said = await process.communicate()
    except TimeoutError:
        return Outcome(f"[no answer after {_SEARCH_S:g} s: search a smaller folder, or a simpler pattern]", 1)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await uncancelled(process.wait())
    if process.returncode:
        return Outcome(said or b"the search failed", 1)
    now = time.time_ns()
    inputs = {
        file_entity(jail.absolute(name)): Version(hash_, now) for name, hash_ in json.loads(said).items()
    }
    return Outcome(found or b"[nothing found]", inputs=inputs)
