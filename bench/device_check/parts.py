"""The parts of the check; each runs in a process of its own. What could hang or crash stands alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deeproot.bench.device_check.attention_cases import attention_cases
from deeproot.bench.device_check.cases import Case
from deeproot.bench.device_check.ceilings import measure_ceilings
from deeproot.bench.device_check.engine_rig import Rig, Variant, measure_engine
from deeproot.bench.device_check.flash import flash_times
from deeproot.bench.device_check.measure import check_case, time_case
from deeproot.bench.device_check.row_cases import row_cases
from deeproot.bench.device_check.settings import Setting
from deeproot.engine.attention_choice import AttentionError

Results = Iterator[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Part:
    """`run` yields a name and figures at a time, so that what was measured before a hang is kept."""

    name: str
    seconds: float
    """At most."""
    run: Callable[[Setting], Results]
    in_dry_run: bool = True
    assemblers: bool = False
    """Run once with each assembler that is found."""


def all_parts() -> list[Part]:
    """In the order in which they are run: what the later ones are judged by first."""
    attention = partial(Part, seconds=60)
    variants = {
        "triton, graphs, overlap": Variant("triton", graphs=True, overlap=True),
        "triton, overlap": Variant("triton", graphs=False, overlap=True),
        "triton, graphs": Variant("triton", graphs=True, overlap=False),
        "torch": Variant("torch", graphs=False, overlap=False),
        "flash": Variant("flash", graphs=False, overlap=True),
    }
    return [
        Part("ceilings", 40, _ceilings),
        Part("rows", 70, _rows),
        attention("attention D128 page 64", run=_attention(128, 64, "plain", "decode", "cascade")),
        attention("attention D128 page 16", run=_attention(128, 16, "plain", "decode"), in_dry_run=False),
        attention("attention D64 page 64", run=_attention(64, 64, "plain", "decode"), in_dry_run=False),
        attention("attention fp8", run=_attention(128, 64, "plain", "decode", fp8=True), in_dry_run=False),
        attention("attention specialised page 64", run=_attention(128, 64, "specialised")),
        attention(
            "attention specialised page 128", run=_attention(128, 128, "specialised"), in_dry_run=False
        ),
        Part("flash-attn", 40, flash_times, in_dry_run=False),
        *(
            Part(f"engine: {name}", 60, partial(_engine, variant), in_dry_run=name == "triton, overlap")
            for name, variant in variants.items()
        ),
        attention(
            "assembler",
            run=_attention(128, 64, "plain", "decode", "specialised"),
            in_dry_run=False,
            assemblers=True,
        ),
    ]


def _ceilings(setting: Setting) -> Results:
    copy_bytes, side = (2**16, 64) if setting.dry else (2**30, 8192)
    yield "ceilings", measure_ceilings(setting.device, setting.dtype, copy_bytes, side)


def _rows(setting: Setting) -> Results:
    # The interpreter's own cast to e4m3 is not the hardware's.
    rows = row_cases(setting.dtype, setting.rows, setting.columns, setting.vocabulary, fp8=not setting.dry)
    yield from _cases(setting, rows)


def _attention(head_dim: int, page: int, *forms: str, fp8: bool = False) -> Callable[[Setting], Results]:
    def run(setting: Setting) -> Results:
        shape = setting.shape(head_dim, page, fp8)
        cases = attention_cases(shape, setting.checked, setting.timed, setting.multiprocessors, forms)
        yield from _cases(setting, cases)

    return run


def _cases(setting: Setting, cases: list[Case]) -> Results:
    for case in cases:
        generator = torch.Generator(setting.device).manual_seed(setting.seed)
        checked = check_case(case, generator)
        timed = time_case(case, generator, setting.model, setting.l2_bytes)
        yield case.name, {**checked, **timed, "right": checked["right"] and timed["whole"]}


@torch.inference_mode()
def _engine(variant: Variant, setting: Setting) -> Results:
    try:
        rig = Rig(setting.engine, variant, setting.device, setting.seed)
    except AttentionError as error:
        yield "engine", {"skipped": str(error)}
        return
    yield from measure_engine(rig)
