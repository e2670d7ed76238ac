"""Prometheus' own client must say the same of the same values."""

import prometheus_client
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from deeproot.runtime.server.histogram import Histogram

from .harness import parse_metrics

BOUNDS = (0.001, 0.25, 1.0, 30.0)
values = st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 100, width=32)), max_size=20)


@settings(max_examples=100, deadline=None)
@given(found=values)
def test_the_scrape_is_that_of_the_library(found: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Histogram("x_seconds", "Some time", BOUNDS)
    ours.register(own)
    reference = prometheus_client.Histogram("x_seconds", "Some time", buckets=BOUNDS, registry=theirs)
    for value in found:
        own.observe(value)
        reference.observe(value)
    said, expected = (parse_metrics(generate_latest(one).decode()) for one in (ours, theirs))
    expected.pop("x_seconds_created", None)
    assert said == expected
