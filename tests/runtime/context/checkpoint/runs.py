"""Random agent runs with a real workspace, true checkpoints of them, and corruptions of those."""

import random
import string
from collections.abc import Callable
from pathlib import Path

from deeproot.runtime.context import record
from deeproot.runtime.context.checkpoint.files import Workspace
from deeproot.runtime.context.checkpoint.ledger import ledger
from deeproot.runtime.context.checkpoint.schema import Artifact, Checkpoint, Milestone
from deeproot.runtime.context.checkpoint.trace import Trace, read_trace
from deeproot.runtime.context.event_log import EventLog

RULES = (
    "Never edit vendor/.",
    "Do not call external network tools.",
    "Run pytest with --db-port=5433.",
    "Do not change the public ABI in include/channel.h.",
    "Never push to main.",
)
LINES = (
    "3 passed in 0.12s",
    "1 failed, 2 passed in 0.31s",
    "FAILED tests/test_auth.py::test_port",
    "make: Error 2",
    "ok",
)
FILES = ("src/alloc.c", "src/channel.c", "include/channel.h", "tests/test_auth.py", "a b/ü.txt")


def make_run(rng: random.Random, folder: Path, turns: int = 20) -> tuple[EventLog, Workspace]:
    """A log of about `2 * turns + 8` events and the folder that its agent worked in."""
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"line {i} {rng.random()}\n" for i in range(rng.randint(1, 40))))
    now = iter(range(1_700_000_000, 1_800_000_000))
    log = EventLog.memory(clock=lambda: next(now) * 10**9)
    record.policy(log, "You fix failing tests.")
    for rule in rng.sample(RULES, rng.randint(1, len(RULES))):
        record.constraint(log, rule)
    record.user(log, f"Task {rng.random()}: make tests/test_auth.py pass.\nKeep the diff small.")
    for i in range(turns):
        call_id = f"c{i if rng.random() < 0.9 else max(0, i - 1)}"  # some servers give an id twice
        arguments = f'{{"cmd": "{rng.choice(["pytest -q", "make", "cat src/alloc.c", "ls", f"echo {i} > src/alloc.c"])}"}}'
        call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        record.assistant(
            log, f"Step {i}: I think it is {rng.choice(string.ascii_letters)}.", tool_calls=[call]
        )
        output = "\n".join([f"run {rng.random()}", *rng.sample(LINES, rng.randint(0, 3))])
        record.tool_result(log, call_id, output, name="bash", exit_code=rng.choice([0, 0, 1, 2, -9, None]))
        if rng.random() < 0.1:
            record.user(log, f"Also: never touch file {i}.\nThank you.")
    return log, Workspace(folder)


def read_points(rng: random.Random, log: EventLog, files: Workspace) -> list[tuple[Trace, Checkpoint]]:
    """Three points of a run, and everything that can truly be said at each."""
    uptos = [rng.randint(len(log) // 2, len(log)) for _ in range(3)]
    return [(trace, ledger(trace, files)) for trace in (read_trace(log, upto) for upto in uptos)]


def true_checkpoint(rng: random.Random, trace: Trace, base: Checkpoint, files: Workspace) -> Checkpoint:
    """A checkpoint in which everything is so, of a random length, as a model might choose it. `base`: the ledger."""
    log = trace.log
    chosen = sorted(rng.sample(range(len(base.milestones)), rng.randint(3, len(base.milestones))))
    milestones = []
    for milestone in [base.milestones[i] for i in chosen]:
        outcome = trace.outcomes[milestone.event]
        text = log.text(outcome.event)
        start = rng.randint(0, len(text) - 1)
        digits = rng.randint(16, 64)
        milestones.append(
            milestone.model_copy(
                update={
                    "proof": rng.choice([milestone.proof, "", text[start : start + rng.randint(1, 30)]]),
                    "output_digest": outcome.event.payload_hash[:digits],
                }
            )
        )
    artifacts = []
    for name in rng.sample(FILES, rng.randint(1, len(FILES))):
        state = files.state(name)
        assert state is not None
        first = rng.randint(1, state.lines)
        ranges = ((first, rng.randint(first, state.lines)),) if rng.random() < 0.5 else ()
        artifacts.append(Artifact(path=name, hash=state.hash[: rng.randint(16, 64)], ranges=ranges))
    constraints = list(trace.constraints)
    rng.shuffle(constraints)
    said = [line for event in trace.instructions for line in log.text(event).split("\n")]
    constraints += rng.sample(said, rng.randint(0, 2))
    changes = {
        "milestones": tuple(milestones),
        "artifacts": tuple(artifacts),
        "constraints": tuple(constraints),
        "hypothesis": "".join(rng.choices(string.printable, k=rng.randint(0, 200))),
    }
    return base.model_copy(update=changes)


def _with_milestone(rng: random.Random, c: Checkpoint, **changes: object) -> Checkpoint:
    i = rng.randrange(len(c.milestones))
    return with_milestone(c, i, c.milestones[i].model_copy(update=changes))


def with_milestone(c: Checkpoint, i: int, milestone: Milestone) -> Checkpoint:
    """The checkpoint with another milestone at index `i`."""
    return c.model_copy(update={"milestones": (*c.milestones[:i], milestone, *c.milestones[i + 1 :])})


def flipped_exit_code(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    i = rng.randrange(len(c.milestones))
    old = c.milestones[i].exit_code
    new = rng.choice([code for code in (0, 1, 2, -9, 127, None) if code != old])
    return with_milestone(c, i, c.milestones[i].model_copy(update={"exit_code": new}))


def wrong_output_digest(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    i = rng.randrange(len(c.milestones))
    old = c.milestones[i].output_digest
    at = rng.randrange(len(old))
    digit = rng.choice([d for d in "0123456789abcdef" if d != old[at]])
    new = old[:at] + digit + old[at + 1 :]
    return with_milestone(c, i, c.milestones[i].model_copy(update={"output_digest": new}))


def invented_event(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    results = set(t.outcomes)
    event = rng.choice([n for n in range(t.upto + 50) if n not in results])
    return _with_milestone(rng, c, event=event)


def invented_call_id(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    return _with_milestone(rng, c, call_id=f"call_{rng.randrange(10**9)}")


def reworded_call(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    return _with_milestone(rng, c, call=f'bash {{"cmd":"make -j{rng.randrange(99)}"}}')


def invented_proof(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    return _with_milestone(rng, c, proof=f"{rng.randrange(10**6)} passed in 0.01s, all good")


def swapped_order(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    i = rng.randrange(len(c.milestones) - 1)
    m = list(c.milestones)
    m[i], m[i + 1] = m[i + 1], m[i]
    return c.model_copy(update={"milestones": tuple(m)})


def dropped_constraint(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    gone = rng.choice(list(t.constraints))
    return c.model_copy(update={"constraints": tuple(text for text in c.constraints if text != gone)})


def reworded_constraint(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    old = rng.choice(list(t.constraints))
    words = old.split(" ")
    at = rng.randrange(len(words))
    new = rng.choice(
        [
            " ".join([*words[:at], *words[at + 1 :]]),
            " ".join([*words[:at], "usually", *words[at:]]),
            old.swapcase(),
            f"{old} Unless it helps.",
            old.replace(" ", "  "),
            old[:-1],
        ]
    )
    return c.model_copy(update={"constraints": tuple(new if text == old else text for text in c.constraints)})


def invented_constraint(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    return c.model_copy(
        update={"constraints": (*c.constraints, f"You may edit file {rng.randrange(10**6)}.")}
    )


def changed_goal(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    at = rng.randrange(len(c.goal))
    new = rng.choice([c.goal[:at] + c.goal[at + 1 :], c.goal[:at] + "\u200b" + c.goal[at:], c.goal + " ", ""])
    return c.model_copy(update={"goal": new})


def wrong_artifact_hash(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    i = rng.randrange(len(c.artifacts))
    old = c.artifacts[i]
    at = rng.randrange(len(old.hash))
    digit = rng.choice([d for d in "0123456789abcdef" if d != old.hash[at]])
    new = old.model_copy(update={"hash": old.hash[:at] + digit + old.hash[at + 1 :]})
    return c.model_copy(update={"artifacts": (*c.artifacts[:i], new, *c.artifacts[i + 1 :])})


def missing_artifact(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    path = rng.choice(
        [f"src/new{rng.randrange(99)}.c", "/etc/passwd", "../x", "src", "src/alloc.c/x", "a\0b"]
    )
    return c.model_copy(update={"artifacts": (*c.artifacts, Artifact(path=path, hash="0" * 16))})


def doubled_artifact(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    return c.model_copy(update={"artifacts": (*c.artifacts, rng.choice(c.artifacts))})


def wrong_range(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    i = rng.randrange(len(c.artifacts))
    new = c.artifacts[i].model_copy(update={"ranges": (rng.choice([(1, 1000), (30, 2), (999, 1000)]),)})
    return c.model_copy(update={"artifacts": (*c.artifacts[:i], new, *c.artifacts[i + 1 :])})


def wrong_upto(rng: random.Random, c: Checkpoint, t: Trace) -> Checkpoint:
    return c.model_copy(update={"upto": c.upto + rng.choice([-1, 1, 100])})


Corruption = Callable[[random.Random, Checkpoint, Trace], Checkpoint]
CORRUPTIONS: dict[Corruption, str] = {
    flipped_exit_code: "milestones",
    wrong_output_digest: "milestones",
    invented_event: "milestones",
    invented_call_id: "milestones",
    reworded_call: "milestones",
    invented_proof: "milestones",
    swapped_order: "milestones",
    dropped_constraint: "constraints",
    reworded_constraint: "constraints",
    invented_constraint: "constraints",
    changed_goal: "goal",
    wrong_upto: "goal",
    wrong_artifact_hash: "artifacts",
    missing_artifact: "artifacts",
    wrong_range: "artifacts",
    doubled_artifact: "artifacts",
}
"""Each kind, and the gate that must find it."""
