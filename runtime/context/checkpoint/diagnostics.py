"""What is open at a point of a log, read from the log alone: errors that no later run has shown to be gone."""

from deeproot.runtime.context.checkpoint.trace import shown
from deeproot.runtime.context.compaction.escrow import Escrow, OpenDiagnostic
from deeproot.runtime.context.compaction.turns import TurnReader, all_calls
from deeproot.runtime.context.event_log import EventLog


def open_diagnostics(log: EventLog, upto: int) -> list[OpenDiagnostic]:
    """The diagnostics that are open after event `upto`, verbatim as a terminal shows them, oldest first."""
    reader = TurnReader(log, lambda seq: shown(log.text(log.event(seq))))
    escrow = Escrow()
    escrow.follow(all_calls(reader.turns(range(1, upto + 1))))
    return escrow.open()
