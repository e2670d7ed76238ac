"""What it costs to render chat templates in a process of their own.

    python -m deeproot.bench.template_processes

The same template and conversation in this process and in another, alternating: as text, which chats need, and as spans,
which working sets need. The medians of both, and their difference.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.chat.template_programs import LocalTemplates, TemplateProgram
from deeproot.runtime.context.spans import ChatMessage, Part
from deeproot.runtime.context.template import ChatTemplate

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
        templates = [ChatTemplate(_TEMPLATE), ChatTemplate(_TEMPLATE, processes=processes)]
        for count, size in _SIZES:
            content = ("héllo " * size)[:size]
            kinds = {
                "text": [_texts(program, count, content) for program in programs],
                "spans": [_spans(template, count, content) for template in templates],
            }
            for kind, renderings in kinds.items():
                here, there = (1000 * seconds for seconds in _medians(renderings, args.rounds))
                print(json.dumps({"kind": kind, "messages": count, "characters": count * size,
                                  "here_ms": round(here, 3), "there_ms": round(there, 3),
                                  "added_ms": round(there - here, 3)}))  # fmt: skip
    finally:
        processes.close()
    return 0


def _texts(program: TemplateProgram, count: int, content: str) -> Callable[[], object]:
    messages = [{"role": "user", "content": content}] * count
    return lambda: program.render({"messages": messages, "add_generation_prompt": True})


def _spans(template: ChatTemplate, count: int, content: str) -> Callable[[], object]:
    """As a working set renders: what has not changed since the last call is prepared."""
    chat = [ChatMessage("user", (Part(content, i),), {}) for i in range(count)]
    prepared = [template.prepare(message) for message in chat]
    return lambda: template.render_prepared(prepared)


def _medians(renderings: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    taken: list[list[float]] = [[] for _ in renderings]
    for _ in range(rounds):
        for render, times in zip(renderings, taken, strict=True):
            start = time.perf_counter()
            render()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


if __name__ == "__main__":
    sys.exit(main())
