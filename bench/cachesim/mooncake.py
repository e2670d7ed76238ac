"""Traces that give a prompt as ids of blocks of tokens, as Mooncake's do: the same id, the same content and prefix."""

import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from deeproot.bench.cachesim.call import Call

CONVERSATION = Path(__file__).parents[1] / "data" / "mooncake_conversation_2000.jsonl.xz"
BLOCK = 512
_MOST_ID = 2**30
_ANSWERS_FROM = 2**30


class TraceError(ValueError):
    """A trace is not of the form that is asked for. The message names the line and the field."""


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """One request: when (seconds), ids of the prompt's blocks, tokens of prompt and answer."""

    time_s: float
    hash_ids: tuple[int, ...]
    input_length: int
    output_length: int


def read_trace(lines: Iterable[str], block: int = BLOCK) -> list[BlockRequest]:
    """Requests of a JSONL trace in its order. block: tokens of a block, the last one of a prompt may be shorter.

    Raises `TraceError`.
    """
    made = [_request(line, number, block) for number, line in enumerate(lines, 1) if line.strip()]
    if not made:
        raise TraceError("the trace has no request; give one JSON object a line")
    return made


def conversation(most: int = 2000) -> list[BlockRequest]:
    """The first requests of Mooncake's conversation trace."""
    with lzma.open(CONVERSATION, "rt", encoding="utf-8") as lines:
        return read_trace(line for line, _ in zip(lines, range(most), strict=False))


def calls_of_blocks(requests: Sequence[BlockRequest], block: int = BLOCK) -> list[Call]:
    """Requests as calls of token ids that share exactly what the blocks share.

    Every token of a block is the block's id: two prompts have the same tokens for as long as they have the same blocks,
    and differ from the first token of the first other block on. Answers are tokens that nothing else has.
    """
    return [
        Call(
            session=f"request {i}",
            time_s=request.time_s,
            prompt=np.repeat(np.array(request.hash_ids, dtype=np.int32), block)[: request.input_length],
            answer=np.full(request.output_length, _ANSWERS_FROM + i, dtype=np.int32),
        )
        for i, request in enumerate(requests)
    ]


def _request(line: str, number: int, block: int) -> BlockRequest:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"line {number}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise TraceError(f"line {number}: not an object; give one request a line")
    ids = found.get("hash_ids")
    if not isinstance(ids, list) or not ids or not all(_whole(i, _MOST_ID) for i in ids):
        raise TraceError(f"line {number}: hash_ids is no list of whole numbers from 0 to {_MOST_ID}")
    size, output = found.get("input_length"), found.get("output_length", 0)
    if not _whole(size, len(ids) * block) or size <= (len(ids) - 1) * block:
        raise TraceError(
            f"line {number}: input_length is {size!r}; {len(ids)} block(s) of {block} hold"
            f" {(len(ids) - 1) * block + 1} to {len(ids) * block} tokens"
        )
    if not _whole(output, _MOST_ID):
        raise TraceError(f"line {number}: output_length is {output!r}; give a number of tokens")
    time_ms = found.get("timestamp", 0)
    if isinstance(time_ms, bool) or not isinstance(time_ms, (int, float)) or not 0 <= time_ms < 1e15:
        raise TraceError(f"line {number}: timestamp is {time_ms!r}; give milliseconds from the start")
    return BlockRequest(time_ms / 1000, tuple(ids), size, output)


def _whole(value: Any, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
