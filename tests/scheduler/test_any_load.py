"""Random loads against what the model says alone."""

from hypothesis import settings
from tests.scheduler.any_load import AnyLoad

TestAnyLoad = AnyLoad.TestCase
TestAnyLoad.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
