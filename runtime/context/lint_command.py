"""`deeproot lint`: what breaks the prefix in a log of chat requests. For the shell and for CI."""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from deeproot.runtime.context.lint_log import Break, LintResult, lint_requests
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.request_log import read_requests
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter

CLEAN, FOUND, FAILED = 0, 1, 2
_MAX_BYTES = 1 << 30
_TIMEOUT_S = 60
_CHARACTERS_A_TOKEN = 4


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/cli.py` declares them); returns the exit code.

    0: nothing found. 1: breaks found. 2: the log cannot be read.
    """
    try:
        count = _counter(args.tokenizer)
        result = lint_requests(read_requests(_read(args.log).split("\n")), count)
    except (OSError, ValueError) as error:
        print(f"deeproot lint: {args.log}: {error}", file=sys.stderr)
        return FAILED
    except RecursionError:
        print(f"deeproot lint: {args.log}: a request is nested too deep", file=sys.stderr)
        return FAILED
    shown = [found for found in result.breaks if found.cost_tokens >= args.min_tokens]
    prices = Prices(args.price, args.price_cached)
    print(
        _as_json(result, shown, prices)
        if args.json
        else _as_text(result, shown, prices, exact=bool(args.tokenizer))
    )
    return FOUND if shown else CLEAN


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.buffer.read().decode("utf-8-sig")
    if source.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(source, timeout=_TIMEOUT_S) as response:
                data: bytes = response.read(_MAX_BYTES + 1)
        except urllib.error.URLError as error:
            raise OSError(f"cannot be fetched ({error.reason})") from None
        if len(data) > _MAX_BYTES:
            raise OSError("is longer than 1 GiB; give a part of it")
        return data.decode("utf-8-sig")
    return Path(source).read_bytes().decode("utf-8-sig")


def _counter(tokenizer: str | None) -> Callable[[str], int]:
    if tokenizer is not None:
        return SegmentTokenizer(TokenizersAdapter.from_file(tokenizer)).count
    return lambda text: (len(text) + _CHARACTERS_A_TOKEN - 1) // _CHARACTERS_A_TOKEN


def _dollars(tokens: int, prices: Prices) -> float:
    """What computing tokens cost that could have been read from the cache."""
    return tokens * (prices.full - prices.cached) / 1_000_000


def _as_json(result: LintResult, shown: list[Break], prices: Prices) -> str:
    lost = sum(found.cost_tokens for found in shown)
    return json.dumps(
        {
            "requests": result.requests,
            "sessions": result.sessions,
            "total_tokens": result.total_tokens,
            "reusable_tokens": result.reusable_tokens,
            "lost_tokens": lost,
            "lost_dollars": _dollars(lost, prices),
            "breaks": [asdict(found) for found in shown],
        },
    )


def _as_text(result: LintResult, shown: list[Break], prices: Prices, *, exact: bool) -> str:
    about = "" if exact else "about "
    lines = []
    for found in shown:
        lines.append(
            f"line {found.line}: {found.cause} in {found.where} ({found.zone.value}), against line {found.since}: "
            f"{about}{found.cost_tokens} tokens computed anew, ${_dollars(found.cost_tokens, prices):.6f}"
        )
        lines += [f"    before: {found.before!r}", f"    after:  {found.after!r}"]
    lost = sum(found.cost_tokens for found in shown)
    share = 100 * result.reusable_tokens / result.total_tokens if result.total_tokens else 0.0
    lines.append(
        f"{result.requests} requests, {result.sessions} session(s): {about}{result.total_tokens} tokens, "
        f"{share:.1f}% reusable; {len(shown)} break(s) lost {about}{lost} tokens, ${_dollars(lost, prices):.6f}"
    )
    return "\n".join(lines)
