"""What a request says about its turn: how important it is and when it must be over; and whether there is room for it."""

import math
from typing import Annotated

from fastapi import Depends, Request

from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.schemas import MAX_PRIORITY
from deeproot.runtime.server.state import ServerState, state_of

TIMEOUT_HEADER = "x-deeproot-timeout"
PRIORITY_HEADER = "x-deeproot-priority"


async def has_room(request: Request, state: Annotated[ServerState, Depends(state_of)]) -> None:
    """A dependency that turns a request away before anything is done for it. Raises a 400, a 429, a 503."""
    state.limits.check(request.state.api_key_digest)
    state.ready().client.check_room(priority_of(request, None))
    timeout_of(request, state)


def priority_of(request: Request, in_body: int | None) -> int:
    """The priority of a request, lower is more important: its body's, else that of its header. Raises a 400."""
    said = request.headers.get(PRIORITY_HEADER, "0").strip()
    digits = said.removeprefix("-")
    # At most as many digits as the limit: Python refuses very long numbers.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4):
        raise invalid(
            f"The header X-Deeproot-Priority is {said[:40]!r}: set it to a whole number.", PRIORITY_HEADER
        )
    if abs(int(said)) > MAX_PRIORITY:
        raise invalid(
            f"The header X-Deeproot-Priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {said}.",
            PRIORITY_HEADER,
        )
    return int(said) if in_body is None else in_body


def timeout_of(request: Request, state: ServerState) -> float | None:
    """Seconds from now in which the answer must be complete: the server's, or the header's if that is less; None: as
    long as it takes. Raises a 400."""
    most, said = state.options.limits.request_timeout_s, request.headers.get(TIMEOUT_HEADER)
    if said is None:
        return most
    try:
        wanted = float(said)
    except ValueError:
        wanted = math.nan
    if not 0 < wanted < math.inf:
        raise invalid(
            f"The header X-Deeproot-Timeout is {said[:40]!r}: set it to a number of seconds over 0.",
            TIMEOUT_HEADER,
        )
    return wanted if most is None else min(wanted, most)
