"""The check of the GPU path, run as far as it goes without a GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from deeproot.bench.device_check import main as device_check
from deeproot.bench.device_check.assemblers import compare_assemblers, find_assemblers
from deeproot.bench.device_check.cases import Case, Work, poisoned
from deeproot.bench.device_check.child import run_child
from deeproot.bench.device_check.measure import check_case
from deeproot.bench.device_check.report import is_good, table
from deeproot.kernels.cost import Cost

ROOT = Path(__file__).parents[3]
KERNELS = (
    "rmsnorm",
    "rmsnorm with residual",
    "silu_mul",
    "store_kv",
    "merge_states",
    "relocate",
    "copy_pages",
    "sample",
    "prefill descriptor D64 page 64 float32",
    "prefill specialised D64 page 64 float32",
    "decode D64 page 64 float32",
    "cascade D64 page 64 float32",
)


def test_dry_run(tmp_path: Path) -> None:
    """The command itself, from another folder, in the interpreter."""
    out = tmp_path / "report.json"
    done = subprocess.run(
        [str(ROOT / "scripts" / "device_check"), "--dry-run", "--out", str(out)],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert {part["status"] for part in report["parts"].values()} == {"ok"}
    figures = {name: case for part in report["parts"].values() for name, case in part["result"].items()}
    for name in KERNELS:
        assert figures[name]["right"], name
        assert max(figures[name]["errors"].values()) <= 1e-5
        assert figures[name]["seconds"] > 0
    engine = report["parts"]["engine: triton, overlap"]["result"]
    assert engine["ttft 20"].keys() == {"cold", "cached"}
    assert engine["decode 2"]["tokens_per_s"] > 0
    assert engine["mixed"]["step_max"] >= engine["mixed"]["step_median"]
    assert report["parts"]["ceilings"]["result"]["ceilings"]["matmul_flops"] > 0
    last = done.stdout.splitlines()[-2:]
    assert last[0].startswith("all right, 0 parts without a result")
    assert last[1] == f"written to {out}"


def test_without_a_gpu_it_says_what_can_be_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_check.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


def test_parts_for_which_no_time_is_left_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert device_check.main(["--dry-run", "--seconds", "1", "--out", str(out)]) == 0
    parts = json.loads(out.read_text())["parts"]
    assert parts
    assert all(part["status"] == "left out" for part in parts.values())
    assert f"{len(parts)} parts without a result" in capsys.readouterr().out


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_hanging_part_costs_its_time_limit_and_what_it_had_measured_is_kept() -> None:
    code = (
        "import sys, subprocess\n"
        "open(sys.argv[2], 'w').write('{\"first\": 1}')\n"
        "print('hangs', flush=True)\n"
        "subprocess.run(['sleep', '60'])\n"
    )
    started = time.monotonic()
    report = run_child(python(code), 3)
    assert time.monotonic() - started < 30, "the child of the child was waited for"
    assert report["status"] == "time limit"
    assert report["result"] == {"first": 1}
    assert report["error"].strip() == "hangs"


@pytest.mark.parametrize(
    "code", ["raise ValueError('broken')", "import os; print('broken'); os.abort()", "print('broken')"]
)
def test_a_part_that_ends_badly_or_without_a_result_is_told(code: str) -> None:
    report = run_child(python(f"import sys\n{code}"), 60)
    assert report["status"] == "failed"
    assert "broken" in report["error"]


def test_a_part_sees_its_environment() -> None:
    code = "import os, sys; open(sys.argv[2], 'w').write('\"' + os.environ['SOME_NAME'] + '\"')"
    assert run_child(python(code), 60, {"SOME_NAME": "value"})["result"] == "value"


def doubling(wrong: str = "") -> Case:
    """A kernel that doubles its input, or does not."""

    def make(generator: torch.Generator, timed: bool) -> Work:
        x = torch.randn(8, generator=generator)
        out = poisoned(10, dtype=torch.float32, device=torch.device("cpu"))

        def run() -> None:
            out[: 7 if wrong == "short" else 8] = 2 * x[: 7 if wrong == "short" else 8]
            if wrong == "long":
                out[9] = 0
            if wrong == "off":
                out[3] += 0.1

        def wanted() -> dict[str, torch.Tensor]:
            return {"out": torch.cat((2 * x.double(), torch.full((2,), torch.nan)))}

        return Work(run, {"out": torch.zeros(10) if wrong == "clean" else out}, wanted, Cost(), 1)

    return Case("doubling", 1e-6, make)


@pytest.mark.parametrize(("wrong", "right"), [("", True), ("short", False), ("long", False), ("off", False)])
def test_what_is_not_written_written_too_far_or_wrong_is_seen(wrong: str, right: bool) -> None:
    assert check_case(doubling(wrong), torch.Generator())["right"] is right


def test_outputs_must_be_poisoned() -> None:
    with pytest.raises(ValueError, match="no poison"):
        check_case(doubling("clean"), torch.Generator())


def test_inputs_are_fresh_with_each_seed() -> None:
    case = doubling()
    digests = [check_case(case, torch.Generator().manual_seed(seed))["digest"] for seed in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]


def test_assemblers_are_told_apart_by_their_results() -> None:
    good = {"digest": "aa", "right": True, "seconds": 1.0}
    reports: dict[str, dict[str, Any]] = {
        "12.8": {"prefill": good, "decode": good},
        "13.0": {"prefill": good, "decode": {**good, "digest": "bb", "right": False}},
    }
    compared = compare_assemblers(reports)
    assert (compared["prefill"]["same_bytes"], compared["prefill"]["right"]) == (True, True)
    assert (compared["decode"]["same_bytes"], compared["decode"]["right"]) == (False, False)


def test_tritons_own_assembler_is_found() -> None:
    found = find_assemblers()
    assert any("triton" in path for path in found.values())


def report(**part: Any) -> dict[str, Any]:
    kernel = {
        "errors": {"out": 1e-8},
        "right": True,
        "seconds": 1e-5,
        "floor_seconds": 5e-6,
        "floor_share": 0.5,
    }
    whole = {"status": "ok", "seconds": 1.0, "result": {"decode": kernel}} | part
    about = {"device": "GPU", "torch": "2", "triton": "3.9", "seed": 5, "dry_run": False, "seconds": 9.0}
    return {**about, "parts": {"attention": whole}}


def test_the_table_says_what_is_wrong() -> None:
    assert is_good(report())
    assert any("decode" in line and "right" in line and "0.50" in line for line in table(report()))
    wrong = report()
    wrong["parts"]["attention"]["result"]["decode"]["right"] = False
    assert not is_good(wrong)
    assert any("WRONG" in line for line in table(wrong))
    hung = report(status="time limit", error="said\nlast words")
    assert not is_good(hung)
    assert any("time limit" in line and "last words" in line for line in table(hung))
    assert table(hung)[-1].startswith("NOT all right")


def test_torch_numpy_and_triton_are_enough() -> None:
    """Without any other package that the project depends on, all parts are there and the scheduler runs."""
    code = """
import importlib.metadata as metadata
import importlib.util
import re
import sys
needed = {re.match("[A-Za-z0-9_-]+", line)[0].lower() for line in metadata.requires("deeproot")}
modules = metadata.packages_distributions().items()
blocked = {name for name, owners in modules if {o.lower() for o in owners} & needed - {"deeproot", "torch", "numpy", "triton"}}
assert "msgspec" in blocked and "torch" not in blocked
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in blocked else real(name, *rest)
from deeproot.bench.device_check.structs import ensure_structs
assert not ensure_structs()
from deeproot.bench.device_check.parts import all_parts
assert all_parts()
from echo_model import EchoModel, make_pool
from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.scheduler import Scheduler
pool = make_pool(4, 16)
scheduler = Scheduler(SchedulerConfig(2, 8, 32, overlap=True), RadixCache(4), pool, EchoModel(pool))
scheduler.add(AddRequest("a", b"\\0\\0\\0\\0" * 9, SamplingParams(max_tokens=3, seed=1)))
outputs = []
while scheduler.has_work:
    outputs += scheduler.step()
assert [o.finish_reason for o in outputs] == [None, None, "length"], outputs
assert outputs[-1].usage.computed == 9
"""
    helpers = str(ROOT / "tests" / "helpers")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": helpers},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
