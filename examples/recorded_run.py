"""Writes the log of a short agent's run, for `deeproot measure` and the page on checkpoints to look at.

    python examples/recorded_run.py run.db

The run is made up: a rule, a task, six calls of which one breaks the rule, what a server reported, and the tests' verdict.
"""

import json
import sys

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog

STEPS = [
    ("pytest -q", "FAILED tests/test_auth.py::test_port\nE   ConnectionRefusedError: port 5432\n1 failed", 1),
    ("cat src/auth.py", "DB_PORT = 5432\nDB_HOST = 'db_primary'", 0),
    ("sed -i s/5432/5433/ src/auth.py", "", 0),
    ("sed -i s/db_primary/db_replica/ src/auth.py", "", 0),
    ("sed -i s/5432/5433/ vendor/client.py", "", 0),
    ("pytest -q --db-port=5433", "3 passed", 0),
]


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "run.db"
    with EventLog.open(path) as log:
        record.policy(log, "You fix failing tests.")
        record.constraint(log, "Never edit vendor/.")
        record.user(log, "tests/test_auth.py fails. Fix it.")
        for number, (command, output, exit_code) in enumerate(STEPS):
            function = {"name": "bash", "arguments": json.dumps({"cmd": command})}
            call = {"id": f"c{number}", "type": "function", "function": function}
            record.assistant(log, f"Step {number}.", tool_calls=[call])
            record.usage(log, prompt_tokens=200 + 90 * number, cached_tokens=90 * number, output_tokens=40)
            record.tool_result(log, f"c{number}", output, name="bash", exit_code=exit_code)
        record.outcome(log, True, judge="pytest -q")
    print(f"{path}: {len(STEPS)} turns")


if __name__ == "__main__":
    main()
