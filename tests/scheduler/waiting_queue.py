"""What tests of the waiting requests' order make: requests, a queue, and its order by name."""

from deeproot.scheduler.config import Policy
from deeproot.scheduler.messages import Hints, SamplingParams
from deeproot.scheduler.request import Request
from deeproot.scheduler.waiting import WaitingRequests

GRACE = 100


def make(
    rid: str, num_tokens: int = 10, priority: int = 0, tenant: bytes = b"", session: bytes = b""
) -> Request:
    sampling = SamplingParams(max_tokens=1, seed=0)
    who = {"priority": priority, "tenant": tenant, "hints": Hints(session=session)}
    return Request(rid, b"\0" * 4 * num_tokens, num_tokens, sampling, **who)


def queue(policy: Policy = "fcfs", patience: float = 2.0) -> WaitingRequests:
    """With a thousand tokens a second."""
    return WaitingRequests(policy, patience, GRACE, lambda: 0.001)


def add(waiting: WaitingRequests, request: Request, now: float = 0.0, num_missing: int | None = None) -> None:
    waiting.shares.open(request.tenant)
    waiting.add(request, now, request.num_tokens if num_missing is None else num_missing)


def order(waiting: WaitingRequests, now: float = 0.0, n: int = 64) -> list[str]:
    return [request.rid for request in waiting.tries(n, now)]
