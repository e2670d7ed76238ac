"""Prometheus metrics of one server, in a registry of its own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deeproot.runtime.client import EngineClient
from deeproot.runtime.explain.report import Explanation
from deeproot.runtime.server.histogram import Histogram
from deeproot.runtime.server.tracing import NoTracer, Tracer
from deeproot.scheduler.messages import TokenOutput
from deeproot.scheduler.stats import EngineStats

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Counters and histograms that the server feeds, and gauges read from the engine on each scrape."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """tracer: who hears of each request beside the counters."""
        self.tracer = tracer or NoTracer()
        registry = CollectorRegistry()
        self._registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"deeproot_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"deeproot_{name}_seconds", text, buckets)
            registry.register(made)
            return made

        self._prompt = counter("prompt_tokens", "Prompt tokens of ended requests")
        self._cached = counter("cached_tokens", "Prompt tokens whose K and V came from the cache")
        self._computed = counter("computed_tokens", "Prompt tokens that were computed")
        self._recomputed = counter("recomputed_tokens", "Tokens computed again after preemptions")
        self._continued = counter(
            "continuation_tokens",
            "Prompt tokens that remembered replies kept from being computed anew, if they were still cached",
        )
        self._missed = counter(
            "missed_tokens",
            "Prompt tokens that were computed (but for each prompt's last), by why they were not cached",
            "cause",
        )
        self._output = counter("output_tokens", "Output tokens of ended requests")
        self._requests = counter("requests", "Ended requests", "endpoint", "finish_reason")
        self._slow_readers = counter(
            "slow_readers", "Streams cut off because their clients did not read them"
        )
        self._deadlines = counter("deadlines_exceeded", "Requests ended because their time was over")
        self._ttft = histogram(
            "time_to_first_token", "From a request's arrival to its first token", _LATENCY_S
        )
        self._itl = histogram("inter_token_latency", "Between successive tokens of a request", _INTER_TOKEN_S)
        self._e2e = histogram("request_duration", "From a request's arrival to its last token", _LATENCY_S)

    def watch_engine(self, client: EngineClient) -> None:
        """Read the gauges from `client` from now on."""
        self._registry.register(_EngineGauges(client))

    def count_tokens(self, last: TokenOutput) -> None:
        """Count the tokens of a request that the engine has ended."""
        if last.usage is not None:
            self._prompt.inc(last.usage.prompt)
            self._cached.inc(last.usage.cached)
            self._computed.inc(last.usage.computed)
            self._recomputed.inc(last.usage.recomputed)
            self._output.inc(last.usage.output)

    def count_continuation(self, num_tokens: int) -> None:
        """Count what `continuation.Prompt.tokens_saved` says."""
        self._continued.inc(num_tokens)

    def count_misses(self, explanation: Explanation) -> None:
        """Count what was computed by why it was not cached."""
        for miss in explanation.misses:
            self._missed.labels(miss.cause.value).inc(miss.tokens)

    def missed_tokens(self) -> dict[str, int]:
        """Prompt tokens that were computed, by why they were not cached."""
        samples = [sample for metric in self._missed.collect() for sample in metric.samples]
        return {
            sample.labels["cause"]: int(sample.value) for sample in samples if sample.name.endswith("_total")
        }

    def count_request(self, endpoint: str, finish_reason: str, duration_s: float) -> None:
        self._requests.labels(endpoint, finish_reason).inc()
        self._e2e.observe(duration_s)

    def count_slow_reader(self) -> None:
        self._slow_readers.inc()

    def count_deadline(self) -> None:
        self._deadlines.inc()

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._itl.observe(seconds)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)


class _EngineGauges(Collector):
    """The engine's state, read when it is asked for."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def describe(self) -> list[Metric]:
        # Without this the registry would ask for the figures when the collector is registered.
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._client.stats()
        yield GaugeMetricFamily("deeproot_engine_up", "1 if there is an engine", int(stats is not None))
        yield CounterMetricFamily(
            "deeproot_engine_restarts", "Engines started after one had died", self._client.num_restarts
        )
        yield CounterMetricFamily(
            "deeproot_requests_shed",
            "Requests ended before they began, for more important ones",
            self._client.num_shed,
        )
        if stats is None:
            return
        yield GaugeMetricFamily(
            "deeproot_engine_step_age_seconds",
            "How long the step that is being computed has been running",
            self._client.step_age_s(),
        )
        yield GaugeMetricFamily(
            "deeproot_engine_silence_seconds",
            "For how long the engine has given no sign of life",
            self._client.silence_s(),
        )
        counters = stats.counters
        private = stats.num_pages - stats.num_free_pages - stats.num_cached_pages
        yield GaugeMetricFamily("deeproot_requests_running", "Requests that run", stats.num_running)
        yield GaugeMetricFamily("deeproot_requests_waiting", "Requests that wait", stats.num_waiting)
        pages = GaugeMetricFamily("deeproot_pages", "Pages of the KV cache by owner", labels=["state"])
        pages.add_metric(["free"], stats.num_free_pages)
        pages.add_metric(["cached"], stats.num_cached_pages)
        pages.add_metric(["private"], private)
        yield pages
        locked = stats.num_cached_pages - stats.num_evictable_pages
        yield GaugeMetricFamily("deeproot_pages_locked", "Cached pages that running requests use", locked)
        yield from _lease_metrics(stats)
        yield CounterMetricFamily("deeproot_steps", "Steps of the engine", counters.steps)
        yield CounterMetricFamily(
            "deeproot_preemptions", "Requests set back to waiting", counters.preemptions
        )
        yield CounterMetricFamily(
            "deeproot_drafted_tokens", "Tokens guessed ahead and verified", counters.drafted
        )
        yield CounterMetricFamily(
            "deeproot_accepted_tokens", "Guessed tokens that were right", counters.accepted
        )
        yield CounterMetricFamily(
            "deeproot_evicted_pages", "Pages evicted from the cache", counters.evicted_pages
        )


def _lease_metrics(stats: EngineStats) -> Iterator[Metric]:
    """Cached pages and hits by class of eviction."""
    raised = (
        ("leaf", stats.num_leaf_pages, stats.leaf_hits),
        ("trunk", stats.num_trunk_pages, stats.trunk_hits),
        ("root", stats.num_root_pages, stats.root_hits),
        ("shared", stats.num_shared_pages, stats.shared_hits),
    )
    plain = stats.num_cached_pages - stats.num_scratch_pages - sum(pages for _, pages, _ in raised)
    pages = GaugeMetricFamily(
        "deeproot_cached_pages", "Cached pages by class of eviction, first to go first", labels=["class"]
    )
    hits = CounterMetricFamily(
        "deeproot_cache_hit_tokens",
        "Prompt tokens found cached, by the class of their pages",
        labels=["class"],
    )
    pages.add_metric(["scratch"], stats.num_scratch_pages)
    pages.add_metric(["plain"], plain)
    hits.add_metric(["plain"], stats.counters.cached - sum(found for _, _, found in raised))
    for name, num_pages, found in raised:
        pages.add_metric([name], num_pages)
        hits.add_metric([name], found)
    yield pages
    yield hits
    yield GaugeMetricFamily("deeproot_leases", "Leases that run", stats.num_leases)
