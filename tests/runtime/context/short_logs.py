"""A run in which one observation is hostile, and the control tokens of what is made of it."""

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context


def short_log(payload: str | bytes, *, tools: bool = True) -> EventLog:
    """A run in which one observation is `payload`."""
    log = EventLog.memory(clock=lambda: 1_700_000_000_000_000_000)
    record.policy(log, "You are careful.")
    record.constraint(log, "Never edit vendor/.")
    record.user(log, "Fix the test.")
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
    record.assistant(log, "Looking.", tool_calls=[call] if tools else [])
    if tools:
        record.tool_result(log, "c1", payload, name="bash", exit_code=1)
    else:
        log.append(EventKind.TOOL_RESULT, payload, data={"role": "user", "uri": "tool://bash"}, exit_code=1)
    record.assistant(log, "I see.")
    record.user(log, "And now?")
    return log


def controls_in(context: Context, tokenizer: TokenizersAdapter) -> list[int]:
    structural = {token.token_id for token in tokenizer.added if not token.text.isspace()}
    return [i for i in context.token_ids.tolist() if i in structural]
