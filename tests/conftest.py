"""Fixtures that several packages' tests share."""

import inspect
import os
import time
from pathlib import Path

# Read by Triton when a kernel is defined, so it must stand before any import of one. Compiling is tested in a
# process of its own.
os.environ["TRITON_INTERPRET"] = "1"

import hypothesis
import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real small model, as `scripts/test` has fetched it."""
    home = Path(os.environ.get("DEEPROOT_HOME") or Path.home() / ".cache" / "deeproot")
    path = home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.fail(f"{path} is missing: run scripts/test, which fetches it")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=0.0,
        help="go on with each property test for so long, with new examples in each round; see docs/operations.md",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    seconds: float = pyfuncitem.config.getoption("--fuzz-seconds")
    if not seconds or not hypothesis.is_hypothesis_test(pyfuncitem.obj):
        return None
    fixtures = {
        name: pyfuncitem.funcargs[name] for name in pyfuncitem.fixturenames if name in _wanted(pyfuncitem)
    }
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rounds += 1
        hypothesis.seed(rounds)(pyfuncitem.obj)(**fixtures)
    pyfuncitem.add_report_section("call", "fuzz", f"{rounds} rounds in {seconds:g} s")
    return True


def _wanted(item: pytest.Function) -> set[str]:
    """Fixtures and parameters that a property test takes beside what hypothesis gives it."""
    return set(inspect.signature(item.obj).parameters)
