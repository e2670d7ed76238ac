"""One trace span for each request of the API, as OpenTelemetry has it, if the operator asks for them."""

import importlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from deeproot.runtime.options import SetupError
from deeproot.runtime.output_text import OutputEnd

logger = logging.getLogger(__name__)


class Trace(Protocol):
    """One request on its way."""

    def first_token(self) -> None:
        """The first token of the first choice that has one is there."""

    def end(self, ends: Sequence[OutputEnd | None]) -> None:
        """ends: of each choice; None for one that did not end by itself."""


class Tracer(Protocol):
    def begin(self, endpoint: str, rids: Sequence[str], traceparent: str | None, started: float) -> Trace:
        """A request begins. traceparent: the header of that name. started: when it arrived, by `time.perf_counter`."""
        ...

    def close(self) -> None:
        """Send what has been kept."""


class NoTrace:
    """Says nothing."""

    def first_token(self) -> None:
        pass

    def end(self, ends: Sequence[OutputEnd | None]) -> None:
        pass


class NoTracer:
    """Makes no spans."""

    def begin(self, endpoint: str, rids: Sequence[str], traceparent: str | None, started: float) -> Trace:
        return NoTrace()

    def close(self) -> None:
        pass


class OpenTelemetryTracer:
    """Sends spans by OTLP over HTTP, from a thread of the SDK's. Names follow its conventions for generative models."""

    def __init__(self, endpoint: str, model: str) -> None:
        """endpoint: such as `http://127.0.0.1:4318/v1/traces`. Raises SetupError if OpenTelemetry is not installed."""
        try:
            self._api: Any = importlib.import_module("opentelemetry.trace")
            sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
            export: Any = importlib.import_module("opentelemetry.sdk.trace.export")
            resources: Any = importlib.import_module("opentelemetry.sdk.resources")
            otlp: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            self._propagation: Any = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        except ModuleNotFoundError as error:
            raise SetupError(
                f"--otlp-traces-endpoint needs OpenTelemetry ({error}): pip install 'deeproot[tracing]'"
            ) from None
        self._provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "deeproot"}))
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("deeproot")
        self._model = model

    def begin(self, endpoint: str, rids: Sequence[str], traceparent: str | None, started: float) -> Trace:
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        now = time.time_ns()
        span = self._tracer.start_span(
            endpoint,
            context=self._propagation.TraceContextTextMapPropagator().extract(carrier),
            kind=self._api.SpanKind.SERVER,
            start_time=now - int(1e9 * (time.perf_counter() - started)),
            attributes={
                "gen_ai.system": "deeproot",
                "gen_ai.operation.name": endpoint,
                "gen_ai.request.model": self._model,
                "deeproot.rids": list(rids),
            },
        )
        return _SpanTrace(span, self._api)

    def close(self) -> None:
        self._provider.shutdown()


class _SpanTrace:
    """A span. Any, since the API is only there where it is installed."""

    def __init__(self, span: Any, api: Any) -> None:
        self._span = span
        self._api = api
        self._has_token = False

    def first_token(self) -> None:
        if not self._has_token:
            self._has_token = True
            self._span.add_event("gen_ai.first_token")

    def end(self, ends: Sequence[OutputEnd | None]) -> None:
        known = [end for end in ends if end is not None]
        self._span.set_attribute(
            "gen_ai.response.finish_reasons", ["abort" if end is None else end.reason for end in ends]
        )
        if known:
            self._span.set_attribute("gen_ai.usage.input_tokens", known[0].usage.prompt)
            self._span.set_attribute("gen_ai.usage.output_tokens", sum(end.usage.output for end in known))
            self._span.set_attribute("deeproot.usage.cached_tokens", known[0].usage.cached)
        errors = [end.error or "" for end in known if end.reason == "error"]
        if errors:
            self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, errors[0]))
        self._span.end()
