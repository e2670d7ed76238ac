"""The OpenAPI document, read as a stranger's tool reads it."""

import httpx
import schemathesis
from hypothesis import HealthCheck, given, settings

from .harness import RunningServer

PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/models",
    "/v1/working_sets",
    "/v1/working_sets/{set_id}/events",
    "/v1/working_sets/{set_id}/complete",
    "/v1/sessions/{session_id}/fork",
    "/v1/sessions/{session_id}/rewind",
    "/v1/sessions/{session_id}/close",
    "/tokenize",
    "/detokenize",
    "/v1/cache/probe",
    "/v1/cache/price",
    "/v1/cache/warm",
}


def test_every_surface_is_described(server: RunningServer) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert document["paths"].keys() >= PATHS
    for path in PATHS - {"/v1/models"}:
        assert "requestBody" in document["paths"][path]["post"], path


def test_what_the_document_allows_is_never_a_500(server: RunningServer) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def call(case: schemathesis.Case) -> None:
            response = case.call(timeout=60)
            assert response.status_code < 500, response.text

        call()
        tried.add(operation.path)
    assert tried >= PATHS
    server.wait_idle()
