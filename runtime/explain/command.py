"""`deeproot explain`: why the prompts of late requests were or were not cached, as the running server knows it."""

import argparse
import json
import sys
import time
from typing import Any
from urllib.parse import quote

import httpx

from deeproot.runtime.http_api import bearer, server_base
from deeproot.runtime.options import SetupError

_TIMEOUT_S = 10.0


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or a line for each of the latest. Raises SetupError; 0."""
    path = "/v1/explanations" if args.rid is None else f"/v1/explanations/{quote(args.rid, safe='')}"
    answer = _get(args.url, path, args.api_key, {"limit": args.limit} if args.rid is None else {})
    found = answer["data"] if args.rid is None else answer
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif args.rid is not None:
        print("\n".join(lines_of(answer)))
    elif found:
        print("\n".join(line_of(one) for one in found))
    else:
        print("no request has been served yet", file=sys.stderr)
    return 0


def line_of(found: dict[str, Any]) -> str:
    """One explanation in one line."""
    at = time.strftime("%H:%M:%S", time.localtime(found["created"]))
    shares = (
        f"{found['matched_tokens']} of {found['prompt_tokens']} cached, {found['ceiling_tokens']} at best"
    )
    place = found["divergence"]
    where = f" at {place['segment']}" if place else ""
    return f"{at}  {found['id']}  {shares}  {found['cause'] or 'all cached'}{where}"


def lines_of(found: dict[str, Any]) -> list[str]:
    """One explanation in full."""
    lines = [
        f"request   {found['id']}",
        f"prompt    {found['prompt_tokens']} tokens",
        f"matched   {found['matched_tokens']}",
        f"ceiling   {found['ceiling_tokens']}  what a cache without end would have had",
        f"cause     {found['cause'] or 'none: all but the last token was cached'}",
        *(f"missed    {miss['tokens']}  {miss['cause']}" for miss in found["misses"]),
    ]
    place = found["divergence"]
    if place:
        whose = f" ({place['role']})" if place["role"] else ""
        literal = ", the template's words" if place["literal"] else ""
        lines += [
            f"differs   at token {place['token']}, {place['segment']}{whose}{literal}, from {place['earlier']}",
            f"before    {place['before']!r}",
            f"after     {place['after']!r}",
        ]
    return lines


def _get(url: str, path: str, api_key: str, params: dict[str, Any]) -> Any:
    base = server_base(url)
    try:
        answer = httpx.get(base + path, params=params, headers=bearer(api_key), timeout=_TIMEOUT_S)
        data = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SetupError(f"no deeproot server answers at {base} ({error}): name it with --url") from None
    if answer.status_code != 200:
        said = data.get("error", {}) if isinstance(data, dict) else {}
        raise SetupError(str(said.get("message", f"{base} answers with status {answer.status_code}")))
    return data
