"""What a server counts by itself: the Prometheus counters of deeproot, vLLM, SGLang and llama.cpp."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deeproot.bench.live.client import Server

_VERSION = re.compile(r"/v\d+$")


@dataclass(frozen=True, slots=True)
class Names:
    """Of one engine's counters, as its page has them; None where it has none. `computed`: prompt tokens that were not cached."""

    engine: str
    prompt: str | None
    cached: str | None
    computed: str | None
    output: str


KNOWN = (
    Names(
        "deeproot",
        "deeproot_prompt_tokens_total",
        "deeproot_cached_tokens_total",
        "deeproot_computed_tokens_total",
        "deeproot_output_tokens_total",
    ),
    Names(
        "vLLM",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        None,
        "vllm:generation_tokens_total",
    ),
    Names(
        "SGLang",
        "sglang:prompt_tokens_total",
        "sglang:cached_tokens_total",
        None,
        "sglang:generation_tokens_total",
    ),
    Names(
        "llama.cpp",
        None,
        "llamacpp:prompt_tokens_cached_total",
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens over a stretch of time, or since the server began. None: the engine does not count it."""

    engine: str
    prompt: float | None
    cached: float | None
    computed: float | None
    output: float | None

    def since(self, before: "Counted") -> "Counted":
        """What came between."""

        def less(now: float | None, then: float | None) -> float | None:
            return None if now is None or then is None else now - then

        return Counted(
            self.engine,
            less(self.prompt, before.prompt),
            less(self.cached, before.cached),
            less(self.computed, before.computed),
            less(self.output, before.output),
        )


async def read_counters(server: Server) -> Counted | None:
    """The server's counters now; None if it has no such page or none that are known."""
    try:
        response = await server.http.get(f"{_VERSION.sub('', server.url)}/metrics")
        if response.is_error:
            return None
        return parse_counters(response.text)
    except (httpx.HTTPError, ValueError):
        return None


def parse_counters(text: str) -> Counted | None:
    """Of a page of metrics, summed over labels. Raises ValueError for text that is none."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    for names in KNOWN:
        if names.output in totals:
            return _counted(names, totals)
    return None


def _counted(names: Names, totals: Mapping[str, float]) -> Counted:
    def of(name: str | None) -> float | None:
        return None if name is None else totals.get(name)

    prompt, cached, computed = of(names.prompt), of(names.cached), of(names.computed)
    if computed is None and prompt is not None and cached is not None:
        computed = prompt - cached
    return Counted(names.engine, prompt, cached, computed, totals[names.output])
