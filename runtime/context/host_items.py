"""Items that the host itself adds: reminder, warning, status line, pointer to what was archived."""

from collections.abc import Sequence

from deeproot.runtime.context.events import payload_hash
from deeproot.runtime.context.items import Item, Part, PlanContext
from deeproot.runtime.context.segments import Authority, Channel, Source

_AUTHORITY = {
    "reminder": (Authority.SUPERVISOR, Channel.INSTRUCTION),
    "warning": (Authority.SUPERVISOR, Channel.INSTRUCTION),
    "archived": (Authority.VERIFIED, Channel.ARTIFACT),
    "status": (Authority.VERIFIED, Channel.OBSERVATION),
    "other": (Authority.SUPERVISOR, Channel.INSTRUCTION),
}


def host_item(
    part: Part, text: str, context: PlanContext, *, key: str | None = None, role: str = "user"
) -> Item:
    """An item that stems from no event; its source is the host."""
    authority, channel = _AUTHORITY[part]
    trust = "supervisor" if authority is Authority.SUPERVISOR else "verified"
    return Item(
        key=key or part,
        seq=0,
        time_ns=0,
        kind=None,
        part=part,
        role=role,
        text=text,
        fields={},
        tokens=context.count(text) + context.overhead,
        authority=authority,
        channel=channel,
        source=Source(f"host://{part}", "", trust, "", payload_hash(text.encode("utf-8", "replace"))),
    )


def reminder(constraints: Sequence[Item], context: PlanContext, max_tokens: int) -> Item | None:
    """The constraints once more, for the very end: as many whole ones, first first, as fit in `max_tokens`.

    None if there are no constraints or not even one fits.
    """
    head = "Constraints that hold at every step:"
    lines: list[str] = []
    for i, constraint in enumerate(constraints):
        left = len(constraints) - i - 1
        rest = f"\n({left} more in the system message)" if left else ""
        if context.count("\n".join([head, *lines, f"- {constraint.text}"]) + rest) > max_tokens:
            break
        lines.append(f"- {constraint.text}")
    if not lines:
        return None
    left = len(constraints) - len(lines)
    more = [f"({left} more in the system message)"] if left else []
    return host_item("reminder", "\n".join([head, *lines, *more]), context)


def status(newest: Item | None, states: Sequence[Item], context: PlanContext) -> Item | None:
    """The newest status and the readings that are newer than it, as key-value lines; None without either."""
    lines = [newest.text] if newest is not None and newest.text else []
    lines += [item.text for item in states]
    if not lines:
        return None
    return host_item("status", framed_status("\n".join(lines)), context)


def framed_status(lines: str) -> str:
    """Lines of a status between its tags."""
    return f"<agent_status>\n{lines}\n</agent_status>"


def archived_pointer(first_seq: int, last_seq: int, turns: int, tokens: int, context: PlanContext) -> Item:
    """Says which turns are no longer in the prompt and that the archive has them."""
    text = (
        f'<archived events="{first_seq}-{last_seq}" turns="{turns}" tokens="{tokens}">'
        "Earlier turns are in the archive; ask to read an event again by its number.</archived>"
    )
    return host_item("archived", text, context)
