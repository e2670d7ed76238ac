"""How long one assembly takes beside tokenising new text.

`python -m deeproot.bench.working_set --tokenizer tokenizer.json [--template chat.jinja]`: a log of 500 events, a
working set of up to 24,000 tokens, every text already tokenised. Without a tokenizer a byte-level one is made.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

EVENTS = 500
BUDGET = 44_000
"""With this log the newest batch leaves about 25,000 tokens of a small model's tokenizer."""
CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\\n' + messages[0].content + '\\n\\n# Tools\\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages[1:] %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_WORDS = [
    "def",
    "return",
    "error:",
    "src/main.c:12",
    "self.assertEqual(a,",
    "b)",
    "0x7f",
    "foo(bar)",
    "The",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "import",
    "os",
    "line",
    "42",
    "in",
    "test_parse",
    "AssertionError:",
    "3",
    "!=",
    "4",
    "OK",
    "PASSED",
    "FAILED",
    "warning:",
    "unused",
    "variable",
    "`x`",
]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", help="tokenizer.json of a model")
    parser.add_argument("--template", help="Jinja file; default: ChatML")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    own = tokenizers.Tokenizer.from_file(args.tokenizer) if args.tokenizer else byte_tokenizer()
    segments = SegmentTokenizer(TokenizersAdapter(own))
    source = Path(args.template).read_text(encoding="utf-8") if args.template else CHATML
    log = _log(args.seed, segments)
    results = {
        policy.name: _measure(policy, segments, ChatTemplate(source), log, args.repeats)
        for policy in (ThreeZones(BUDGET), AppendOnly())
    }
    report = {"events": len(log), "python": sys.version.split()[0], "seed": args.seed, "policies": results}
    print(json.dumps(report, indent=1))
    return 0


def _measure(
    policy: ThreeZones | AppendOnly,
    segments: SegmentTokenizer,
    template: ChatTemplate,
    log: EventLog,
    repeats: int,
) -> dict[str, float | int]:
    """Milliseconds of one assembly: the first (reads, filters and tokenises the log), then warm ones."""
    made = WorkingSet(policy=policy, tokenizer=segments, template=template)
    start = time.perf_counter()
    context = made.assemble(log)
    first = time.perf_counter() - start
    warm, busy = [], []
    for _ in range(repeats):
        start, start_busy = time.perf_counter(), time.process_time()
        made.assemble(log)
        warm.append(time.perf_counter() - start)
        busy.append(time.process_time() - start_busy)
    quartiles = statistics.quantiles(warm, n=4)
    return {
        "tokens": context.token_ids.size,
        "messages": len(context.messages),
        "first_ms": round(first * 1e3, 2),
        "warm_ms_median": round(statistics.median(warm) * 1e3, 2),
        "warm_ms_quartile_1": round(quartiles[0] * 1e3, 2),
        "warm_ms_quartile_3": round(quartiles[2] * 1e3, 2),
        "warm_cpu_ms_median": round(statistics.median(busy) * 1e3, 2),
    }


def _log(seed: int, segments: SegmentTokenizer) -> EventLog:
    """500 events; the turns are sized so that the newest ones fill the budget up to just below the high mark."""
    rng = random.Random(seed)
    log = EventLog.memory(clock=lambda: 1_700_000_000_000_000_000)

    def words(count: int) -> str:
        return " ".join(rng.choice(_WORDS) for _ in range(count))

    record.policy(log, words(400))
    record.constraint(log, "Never edit vendor/.")
    functions = [
        {"name": f"tool_{i}", "description": words(20), "parameters": {"type": "object"}} for i in range(8)
    ]
    record.tools(log, [{"type": "function", "function": function} for function in functions])
    record.user(log, words(60))
    i = 0
    while len(log) < EVENTS:
        call = {"name": "tool_1", "arguments": json.dumps({"command": words(5)})}
        record.assistant(log, words(15), tool_calls=[{"id": f"c{i}", "type": "function", "function": call}])
        record.tool_result(
            log, f"c{i}", "\n".join(words(12) for _ in range(rng.randrange(5, 20))), exit_code=0
        )
        i += 1
    return log


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level tokenizer without merges: a token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return made


if __name__ == "__main__":
    sys.exit(main())
