"""What an operator sees: a log line and, if asked for, a trace of every request."""

import http.server
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from deeproot.runtime.logs import _JsonFormatter
from deeproot.runtime.options import EngineOptions, ServerOptions

from .harness import chat_body, running_server

CHAT = "/v1/chat/completions"
DOCS = Path(__file__).parents[3] / "docs"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes traces as a collector does."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_each_request_is_a_span_of_its_callers_trace(
    tiny_options: EngineOptions, collector: Collector
) -> None:
    options = ServerOptions(port=0, otlp_traces_endpoint=collector.url)
    with running_server(tiny_options, options) as server:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        body = chat_body("What is it?", max_tokens=3, ignore_eos=True, n=2)
        answer = httpx.post(server.url + CHAT, json=body, headers=headers, timeout=60).json()
        httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=60)
    # The server sends what it has kept when it ends.
    spans = [
        span
        for data in collector.received
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    chat, text = sorted(spans, key=lambda span: span.name)
    assert (chat.name, text.name) == ("chat", "completions")
    assert (chat.trace_id.hex(), chat.parent_span_id.hex()) == (TRACE, SPAN)
    assert text.trace_id.hex() != TRACE
    said = {item.key: item.value for item in chat.attributes}
    assert [value.string_value for value in said["deeproot.rids"].array_value.values] == [
        f"{answer['id']}-0",
        f"{answer['id']}-1",
    ]
    assert said["gen_ai.usage.input_tokens"].int_value == answer["usage"]["prompt_tokens"]
    assert said["gen_ai.usage.output_tokens"].int_value == answer["usage"]["completion_tokens"] == 6
    assert [value.string_value for value in said["gen_ai.response.finish_reasons"].array_value.values] == [
        "length",
        "length",
    ]
    assert [event.name for event in chat.events] == ["gen_ai.first_token"]
    assert chat.start_time_unix_nano <= chat.events[0].time_unix_nano <= chat.end_time_unix_nano
    assert b"What is it?" not in b"".join(collector.received)


def test_a_log_line_has_the_requests_figures_as_fields_and_no_text(
    tiny_options: EngineOptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="deeproot")
    with running_server(tiny_options) as server:
        secret = "the secret of the ninth floor"
        answer = httpx.post(server.url + CHAT, json=chat_body(secret, max_tokens=2), timeout=60).json()
        httpx.post(server.url + CHAT, json={"messages": [{"role": secret, "content": secret}]}, timeout=60)
        httpx.post(server.url + CHAT, content=b'{"messages": "' + secret.encode(), timeout=60)
        server.wait_idle()
    lines = [
        _JsonFormatter().format(record) for record in caplog.records if record.name.startswith("deeproot")
    ]
    (ended,) = [line for line in map(json.loads, lines) if line.get("rid") == answer["id"]]
    usage = answer["usage"]
    assert ended["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert (ended["prompt"], ended["output"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert ended["cached"] + ended["computed"] == ended["prompt"]
    assert secret not in "".join(lines)


def test_every_metric_that_the_docs_name_is_there(tiny_options: EngineOptions) -> None:
    named = set(re.findall(r"`(deeproot_[a-z_]+)", (DOCS / "operations.md").read_text()))
    assert len(named) > 20
    with running_server(tiny_options, ServerOptions(port=0)) as server:
        assert httpx.post(server.url + CHAT, json=chat_body("What is it?", max_tokens=3)).status_code == 200
        families = {
            sample.name
            for family in text_string_to_metric_families(httpx.get(server.url + "/metrics").text)
            for sample in [family, *family.samples]
        }
    counted = {name.removesuffix("_total") for name in families} | families
    assert {name for name in named if name.removesuffix("_total") not in counted} == set()
