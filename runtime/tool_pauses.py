"""How long tools take, by their own durations: an agent comes back when its tools have ended."""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

_FIRST_S = 60.0
"""For a tool that has not been seen to end yet."""
_SHARE, _MARGIN, _LEAST_S = 0.95, 1.25, 2.0
_SAMPLES = 64
_MAX_OPEN, _MAX_TOOLS = 10_000, 4096


class ToolPauses:
    """Durations of calls by owner and tool, the latest of each. Bounded; for several threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[bytes, str], tuple[tuple[str, ...], float]] = OrderedDict()
        """By owner and call id: the tools that were called together, and when."""
        self._durations: OrderedDict[tuple[bytes, str], deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def called(self, owner: bytes, calls: Sequence[tuple[str, str]], now: float) -> None:
        """A reply has called tools: (call id, name) each."""
        names = tuple(sorted({name for _, name in calls}))
        with self._lock:
            for call_id, _ in calls:
                self._open[owner, call_id] = names, now
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)

    def returned(self, owner: bytes, call_ids: Iterable[str], now: float) -> None:
        """Results of calls came back. Calls made together count as long as all of them took, each once."""
        with self._lock:
            came = {found for call_id in call_ids if (found := self._open.pop((owner, call_id), None))}
            for names, called in came:
                for name in names:
                    line = self._durations.setdefault((owner, name), deque(maxlen=_SAMPLES))
                    line.append(max(0.0, now - called))
                    self._durations.move_to_end((owner, name))
            while len(self._durations) > _MAX_TOOLS:
                self._durations.popitem(last=False)

    def expected(self, owner: bytes, names: Iterable[str]) -> float:
        """Seconds within which the results of calls made together will most likely be back."""
        with self._lock:
            known = [self._durations.get((owner, name)) for name in set(names)]
        return max((_FIRST_S if not line else _upper(line) for line in known), default=0.0)


def _upper(durations: Iterable[float]) -> float:
    """The 95th percentile by nearest rank, with a margin."""
    ordered = sorted(durations)
    return max(_LEAST_S, _MARGIN * ordered[math.ceil(_SHARE * len(ordered)) - 1])
