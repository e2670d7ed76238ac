"""The same log gives the same bytes: again, from its middle, from a copy and from the disk."""

import json
from collections.abc import Callable
from pathlib import Path

from deeproot.runtime.context.canonical import canonical_json
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.jsonl import export_lines, import_lines
from deeproot.runtime.context.openai_messages import import_messages
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.swe_agent import import_trajectory
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

HERE = Path(__file__).parent
AIRLINE = [
    json.loads(line)["messages"] for line in (HERE / "data" / "tau_airline_6.jsonl").read_text().splitlines()
]


def replays(log: EventLog, make: Callable[[], WorkingSet]) -> None:
    """One working set over the growing log, and a fresh one at each length, give the same bytes."""
    kept = make()
    ends = [e.seq for e in log.read() if e.kind is not EventKind.ASSISTANT]
    for seq in [*ends[:: max(1, len(ends) // 8)], ends[-1]]:
        one, other = kept.assemble(log, upto=seq), make().assemble(log, upto=seq)
        assert one.token_ids.tobytes() == other.token_ids.tobytes()
        assert one.boundaries == other.boundaries
        assert canonical_json(list(one.messages)) == canonical_json(list(other.messages))
        assert one.report == other.report


def test_replay_is_byte_identical(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], tmp_path: Path
) -> None:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")

    def make() -> WorkingSet:
        return WorkingSet(policy=ThreeZones(12_000), tokenizer=segments, template=template)

    with EventLog.open(tmp_path / "a.db") as log:
        import_messages(log, AIRLINE[1])
        replays(log, make)
        first = make().assemble(log)
        with EventLog.open(tmp_path / "b.db") as copy:
            import_lines(copy, export_lines(log))
            assert make().assemble(copy).token_ids.tobytes() == first.token_ids.tobytes()
    with EventLog.open(tmp_path / "a.db") as again:
        reread = make().assemble(again)
        assert reread.token_ids.tobytes() == first.token_ids.tobytes()
        assert canonical_json(list(reread.messages)) == canonical_json(list(first.messages))


def test_replay_with_filters_and_batches(tok: TokenizersAdapter, log: EventLog) -> None:
    document = json.loads((HERE / "fixtures" / "sweagent_pydicom_1458.traj.json").read_text())
    import_trajectory(log, document, start_ns=0)
    segments = SegmentTokenizer(tok)
    template = ChatTemplate(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    )
    sizes = [
        WorkingSet(policy=AppendOnly(), tokenizer=segments, template=template).assemble(log).token_ids.size
    ]
    budget = int(sizes[0] * 0.9)

    def make() -> WorkingSet:
        return WorkingSet(policy=ThreeZones(budget), tokenizer=segments, template=template)

    replays(log, make)
    report = make().assemble(log).report
    assert report.tokens < budget
    assert report.dropped
    for drop in report.dropped:
        assert len(log.payload(drop.payload_hash)) == log.event(drop.seq).payload_size
