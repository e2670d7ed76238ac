"""The reader of machine code, the verdicts on it, and the command that compiles every shipped configuration."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deeproot.kernels.check import sass, verdict
from deeproot.kernels.check.cases import Case, cases
from deeproot.kernels.launch import Launch

LISTING = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @P0  BRA `(.L_x_9) ;
.L_x_1:
        /*0020*/                   LDGSTS.E.BYPASS.LTC128B.128 [R2], desc[UR4][R4.64] ;
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR24], R11 ;
        /*0040*/              @!P1 BRA `(.L_x_8) ;
.L_x_2:
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0060*/                   MUFU.EX2 R5, R6 ;
        /*0070*/                   NOP ;
        /*0080*/              @P2  BRA `(.L_x_1) ;
.L_x_3:
        /*0090*/                   LDG.E R5, desc[UR4][R4.64] ;
        /*00a0*/                   QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24, gsb0 ;
        /*00b0*/                   IMAD R1, R2, R3, R4 ;
        /*00c0*/              @P3  BRA `(.L_x_3) ;
.L_x_9:
        /*00d0*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*00e0*/                   STL [R1], R4 ;
        /*00f0*/                   EXIT ;
.L_x_8:
        /*0100*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR24], R11 ;
        /*0110*/              @P1  BRA `(.L_x_2) ;
        /*0120*/                   BRA `(.L_x_8) ;
"""


def test_reader_finds_loops_and_widths() -> None:
    """Two loops; the slow path of the barrier behind EXIT belongs to the first, and is no loop of its own with products."""
    program = sass.parse(LISTING)
    code = sass.count(program.code)
    assert (code["async_128"], code["loads_narrow"], code["stores_128"], code["spills"]) == (1, 1, 1, 1)
    first, second = sass.loops(program)
    assert [one.name for one in first if one.name != "SYNCS"] == [
        "LDGSTS",
        "BRA",
        "HGMMA",
        "MUFU",
        "BRA",
        "BRA",
        "BRA",
    ]
    assert [one.name for one in second] == ["LDG", "QGMMA", "IMAD", "BRA"]
    assert sass.count(first)["flop"] == 2 * 64 * 64 * 16 // 4
    assert sass.count(second)["flop"] == 2 * 64 * 16 * 32 // 4


def test_reader_of_a_loop_around_a_loop_keeps_the_inner_one() -> None:
    outer = "        /*00c8*/              @P4  BRA `(.L_x_1) ;\n.L_x_9:"
    (loop,) = sass.loops(sass.parse(LISTING.replace(".L_x_9:", outer, 1)))
    assert [one.name for one in loop] == ["LDG", "QGMMA", "IMAD", "BRA"]


def test_reader_knows_warp_level_products_and_refuses_an_empty_listing() -> None:
    assert sass.matrix_flop("HMMA.16816.F32.BF16") == 2 * 16 * 8 * 16
    assert sass.matrix_flop("FFMA") == 0
    with pytest.raises(ValueError, match="no instruction"):
        sass.parse("nothing")


def _never_built() -> Launch:
    raise AssertionError("only what was counted is judged here")


CASE = Case(
    "case", "prefill", build=_never_built, matrix="hgmma", loads="async", tile=(128, 64, 64), gate_f=900
)


def facts(**changes: Any) -> dict[str, Any]:
    """A clean kernel: 8 warps, 8 HGMMA of 64x64x16 in a loop of 250 instructions, F 1049."""
    code = dict.fromkeys(("hgmma", "qgmma", "hmma", "tma_loads", "spills", *verdict.WIDTHS), 0)
    code |= {"hgmma": 24, "async_128": 8, "loads_narrow": 5, "stores_128": 4}
    loop = code | {"instructions": 250, "flop": 8 * 2 * 64 * 64 * 16 // 4, "async_128": 4}
    whole = {"registers": 200, "stack": 0, "shared": 100_000, "warps": 8, "code": code, "loops": [loop]}
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            target = whole["loops"][0] if part == "loop" else code
            target[field] = value
        else:
            whole[part] = value
    return whole


KEPT = verdict.budget(CASE, facts())


def test_a_clean_kernel_passes() -> None:
    assert KEPT["F"] == round(4 * 128 * 64 * 64 / 8 / 250)
    assert verdict.problems(CASE, facts(), KEPT, gated=True) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code__spills": 2}, "2 spill instructions"),
        ({"stack": 8}, "8 bytes of stack"),
        ({"shared": 232_449}, "232449 bytes of shared memory"),
        ({"code__hgmma": 0}, "no HGMMA"),
        ({"registers": 221}, "221 registers, over 110% of the 200"),
        ({"code__async_128": 7}, "7 async_128, committed are 8"),
        ({"code__loads_narrow": 6}, "6 loads_narrow, committed are 5"),
        ({"code__stores_128": 3}, "3 stores_128"),
        ({"loop__async_128": 3}, "3 async 128-bit loads a pass, K and V need 4"),
        ({"loop__loads_128": 1}, "need 4"),
        ({"loop__instructions": 264}, "under 95%"),
        ({"loop__instructions": 300}, "gate at least 900"),
        ({"loops": []}, "no loop with matrix instructions"),
    ],
)
def test_each_fault_is_found(changes: dict[str, Any], words: str) -> None:
    assert any(words in line for line in verdict.problems(CASE, facts(**changes), KEPT, gated=True))


def test_a_gate_that_is_known_to_be_missed_is_held_to_its_own_figure() -> None:
    slow = facts(loop__instructions=300)
    kept = verdict.budget(CASE, slow)
    assert verdict.problems(CASE, slow, kept, gated=True) == [f"F {kept['F']}, gate at least 900"]
    assert verdict.problems(CASE, slow, kept | {"missed": "F"}, gated=True) == []
    assert verdict.problems(CASE, slow, kept, gated=False) == []
    assert verdict.problems(CASE, facts(loop__instructions=330), kept | {"missed": "F"}, gated=True)


def test_a_case_without_a_budget_is_wrong() -> None:
    assert "not in budgets.json" in verdict.problems(CASE, facts(), None, gated=True)[0]


def test_lost_specialisation_and_tma_are_found() -> None:
    case = Case(
        "ws", "prefill", CASE.build, matrix="hgmma", loads="tma", specialised=True, tile=(128, 64, 64)
    )
    lost = verdict.problems(case, facts(), KEPT, gated=True)
    assert any("warp specialisation is gone: 8 warps" in line for line in lost)
    plain = Case("tma", "prefill", CASE.build, matrix="hgmma", loads="tma", tile=(128, 64, 64))
    assert "0 TMA loads, K and V must come by TMA" in verdict.problems(plain, facts(), KEPT, gated=True)


def test_rate_of_decode_by_hand() -> None:
    """A pass of 64 tokens of D 128 in bf16 takes in 32 KiB, 8 KiB a warp: at 400 instructions 20.48 bytes each."""
    case = Case("d", "decode", CASE.build, tile=(8, 64, 128))
    whole = facts(warps=4, loop__instructions=400, loop__flop=4 * 8 * 64 * 128 // 4)
    assert verdict.figures(case, whole)["rate"] == pytest.approx(verdict.HBM_BYTES / 20.48, abs=1e-3)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where Triton compiles."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    return subprocess.run(
        [sys.executable, "-m", "deeproot.kernels.check", *arguments],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )


def test_compiling_is_incremental_and_a_lower_budget_fails(tmp_path: Path) -> None:
    """One small kernel, cold, warm, and against a budget that it exceeds."""
    cache = ("--cache", str(tmp_path), "--only", "silu_mul", "--jobs", "1")
    cold, warm = command(*cache), command(*cache)
    assert cold.returncode == 0, cold.stdout + cold.stderr
    assert "1 configurations, 1 compiled now" in cold.stdout
    assert "1 configurations, 0 compiled now" in warm.stdout
    budgets = tmp_path / "budgets.json"
    assert command(*cache, "--budgets", str(budgets), "--update").returncode == 0
    kept = json.loads(budgets.read_text())
    (version,) = kept
    kept[version]["silu_mul 14336"]["registers"] //= 2
    budgets.write_text(json.dumps(kept))
    over = command(*cache, "--budgets", str(budgets))
    assert over.returncode == 1
    assert "registers, over 110%" in over.stdout


def test_the_command_refuses_the_interpreter_and_empty_choices() -> None:
    assert "TRITON_INTERPRET is set" in command(TRITON_INTERPRET="1").stderr
    assert "matches no case" in command("--only", "nothing like this").stderr


@pytest.mark.timeout(1500)
def test_every_shipped_configuration_is_within_budget() -> None:
    """Cold it compiles about a hundred kernels; warm it takes seconds."""
    done = command()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all within budget" in done.stdout


def test_the_results_document_names_every_case_and_no_peer_is_ahead() -> None:
    """bench/results/static_kernels.md is written from the same cases; a case that is renamed or added leaves it stale."""
    root = Path(__file__).resolve().parents[2]
    document = (root / "bench" / "results" / "static_kernels.md").read_text()
    rows = [line for line in document.splitlines() if line.startswith("| ")]
    assert {case.name for case in cases((3, 9))} <= {line.split(" | ")[0].removeprefix("| ") for line in rows}
    assert sum(line.endswith("| yes |") for line in rows) == 36
    assert not any(line.endswith("| NO |") for line in rows)
