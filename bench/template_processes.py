"""What it costs to render chat templates in a process of their own.

    python -m deeproot.bench.template_processes

The same template and conversation in this process and in another, alternating; the medians of both, and their
difference.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.chat.template_programs import LocalTemplates, TemplateProgram

_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZES = ((2, 100), (20, 500), (100, 4000), (1000, 400))
"""Messages, and characters of each."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=51)
    args = parser.parse_args(arguments)
    processes = TemplateProcesses(60.0)
    try:
        programs: list[TemplateProgram] = [
            LocalTemplates().compile(_TEMPLATE, datetime.now),
            processes.compile(_TEMPLATE, datetime.now),
        ]
        for count, size in _SIZES:
            here, there = (1000 * seconds for seconds in _medians(programs, count, size, args.rounds))
            print(json.dumps({"messages": count, "characters": count * size, "here_ms": round(here, 3),
                              "there_ms": round(there, 3), "added_ms": round(there - here, 3)}))  # fmt: skip
    finally:
        processes.close()
    return 0


def _medians(programs: Sequence[TemplateProgram], count: int, size: int, rounds: int) -> list[float]:
    message = {"role": "user", "content": ("héllo " * size)[:size]}
    variables: dict[str, Any] = {"messages": [message] * count, "add_generation_prompt": True}
    taken: list[list[float]] = [[] for _ in programs]
    for _ in range(rounds):
        for program, times in zip(programs, taken, strict=True):
            start = time.perf_counter()
            program.render(variables)
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


if __name__ == "__main__":
    sys.exit(main())
