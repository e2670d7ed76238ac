"""Whatever happens to the files: no call shows a stale copy without saying so, and a replay gives the same bytes."""

import asyncio
import re
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.layers import gentle_layers
from deeproot.runtime.context.compaction.strategies import JOINT
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.price import Stakes
from deeproot.runtime.context.invalidation.settle import Settler
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.working_set import Context

from .conftest import Host, MakeSet

NAMES = ("a.c", "b.c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "own write", "outside write", "delete", "other", "restart"]),
        st.sampled_from(NAMES),
        st.sampled_from(["one", "two", "three"]),
        st.sampled_from([1.0, 50.0, 100_000.0]),
        st.booleans(),
    ),
    max_size=8,
)


def text_of(word: str) -> str:
    return "".join(f"int {word}_{i};\n" for i in range(12))


def unsaid(context: Context, shown: dict[int, tuple[str, str | None]], root: Path) -> list[int]:
    """Observations whose words stand in the prompt although the file is another and no line says so."""
    text = "\n".join(str(message["content"]) for message in context.messages)
    told = {int(number) for number in re.findall(r"^\[stale #(\d+):", text, re.M)}
    views = {int(s): body for s, body in re.findall(r"event=\"(\d+)\">\n(.*?)\n</", text, re.S)}
    wrong = []
    for seq, (name, word) in shown.items():
        path = root / name
        now = path.read_text() if path.exists() else None
        if now != text_of(word or "") and f"int {word}_0;" in views.get(seq, "") and seq not in told:
            wrong.append(seq)
    return wrong


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.booleans())
def test_no_stale_copy_without_a_word(
    make_set: MakeSet, steps: list[tuple[str, str, str, float, bool]], zones: bool
) -> None:
    policy = ThreeZones(50_000) if zones else None
    with tempfile.TemporaryDirectory() as folder, EventLog.memory() as log:
        root, working_set = Path(folder), make_set(policy)
        record.user(log, "go")
        host = Host(root, log, Invalidator(log))
        shown: dict[int, tuple[str, str | None]] = {}
        for name in NAMES:
            shown[host.read_it(name, text_of("one"))] = (name, "one")
        for step, name, word, turns, needed in steps:
            path = root / name
            match step:
                case "read" if path.exists():
                    seen = path.read_text()
                    shown[host.read(name)] = (
                        name,
                        next(w for w in ("one", "two", "three") if text_of(w) == seen),
                    )
                case "own write":
                    host.write(name, text_of(word))
                case "outside write":
                    path.write_text(text_of(word))
                case "delete":
                    path.unlink(missing_ok=True)
                case "restart":
                    host.invalidator, working_set = Invalidator(log), make_set(policy)
                case _:
                    host.run("true", "fine")
            settler = Settler(working_set, stakes=Stakes(turns), root=folder)
            settled = settler.before_call(log, host.invalidator, needed=[str(path)] if needed else ())
            assert unsaid(settled.context, shown, root) == []
            assert np.array_equal(make_set(policy).assemble(log).token_ids, settled.context.token_ids)


def test_a_compaction_takes_what_invalidation_left(host: Host, make_set: MakeSet) -> None:
    """Evicted turns stay gone, and a tombstone that was summarised is said again while the stale text stands."""
    working_set = make_set()
    for i in range(12):
        host.read_it(f"f{i}.c", text_of(f"file{i}"))
        host.run("true", f"turn {i} is fine " + "x " * 200)
    for i in range(4):
        (host.root / f"f{i}.c").write_text("changed\n")
    settler = Settler(working_set, stakes=Stakes(100_000), root=str(host.root))
    assert "int file0_0;" not in str(settler.before_call(host.log, host.invalidator).context.messages)
    size = working_set.assemble(host.log).token_ids.size
    compactor = Compactor(working_set, budget=int(size / 0.85), strategy=JOINT, layers=gentle_layers())
    asyncio.run(compactor.make_room(host.log, 0))
    settled = settler.before_call(host.log, host.invalidator)
    assert settled.context.token_ids.size < size
    assert not any(f"int file{i}_0;" in str(settled.context.messages) for i in range(4))
    assert settled.choice is None, "what is gone is not spoken of again"
