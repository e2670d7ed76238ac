"""Which backend is chosen, and what is said about it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from deeproot.engine import attention_choice
from deeproot.engine.attention_choice import AttentionError, AttentionNeeds, choose_attention, make_page_ops
from deeproot.engine.kv_pool import FP8, KVLayout
from deeproot.engine.page_ops_triton import TritonPageOps
from deeproot.kernels.cpu import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def needs(
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    head_dim: int = 64,
    num_qo_heads: int = 8,
) -> AttentionNeeds:
    layout = KVLayout(1, 2, head_dim, 16, kv_dtype or dtype)
    return AttentionNeeds(device, dtype, layout, num_qo_heads)


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """What torch would say of such a GPU; nothing runs on it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def test_on_a_cpu_the_compiled_backend_is_chosen_and_the_reason_names_what_was_not() -> None:
    choice = choose_attention("auto", needs())
    assert choice.name == "cpu"
    assert "not triton: there is no CUDA GPU" in choice.why


def test_on_a_cpu_without_a_compiler_torch_is_chosen_and_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    choice = choose_attention("auto", needs())
    assert choice.name == "torch"
    assert "not cpu: no C++ compiler was found (c++, g++, clang++): install g++ or clang" in choice.why
    with pytest.raises(AttentionError, match="--attention-backend cpu: no C"):
        choose_attention("cpu", needs())


def test_on_a_cpu_without_vectors_the_compiled_backend_must_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    choice = choose_attention("auto", needs())
    assert choice.name == "torch"
    assert "not cpu: this CPU has neither AVX-512 nor AVX2" in choice.why
    assert choose_attention("cpu", needs()).name == "cpu"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (needs(CUDA), "it is for CPUs"),
        (needs(kv_dtype=FP8), "use --kv-cache-dtype auto"),
        (replace(needs(), deterministic=True), "--deterministic cannot use it"),
        (needs(head_dim=520), "heads of 520 are larger than 512"),
    ],
)
def test_what_the_compiled_backend_cannot_do_is_said(wanted: AttentionNeeds, words: str) -> None:
    with pytest.raises(AttentionError, match=f"--attention-backend cpu: .*{words}"):
        choose_attention("cpu", wanted)


def test_on_hopper_the_projects_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, (9, 0))
    assert choose_attention("auto", AttentionNeeds(CUDA)).name == "triton"
    assert choose_attention("auto", needs(CUDA, torch.bfloat16, FP8)).name == "triton"


def test_on_another_gpu_torch_is_chosen_and_triton_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, (8, 0))
    choice = choose_attention("auto", needs(CUDA, torch.bfloat16))
    assert choice.name == "torch"
    assert "sm_80" in choice.why
    assert choose_attention("triton", needs(CUDA, torch.bfloat16)).name == "triton"
    with pytest.raises(AttentionError, match="e4m3 K and V need a GPU of sm_89"):
        choose_attention("triton", needs(CUDA, torch.bfloat16, FP8))


@pytest.mark.parametrize(
    ("shape", "words"),
    [({"head_dim": 80}, "no kernels for heads of 80"), ({"num_qo_heads": 64}, "32 query heads a KV head")],
)
def test_without_a_kernel_for_the_shape_torch_is_chosen(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any], words: str
) -> None:
    on_gpu(monkeypatch, (9, 0))
    choice = choose_attention("auto", needs(CUDA, torch.bfloat16, **shape))
    assert choice.name == "torch"
    assert words in choice.why
    with pytest.raises(AttentionError, match=f"--attention-backend triton: .*{words}"):
        choose_attention("triton", needs(CUDA, torch.bfloat16, **shape))


@pytest.mark.parametrize(("dtype", "kv_dtype"), [(torch.bfloat16, None), (torch.float32, FP8)])
def test_the_interpreter_is_not_trusted_with_all_dtypes(dtype: torch.dtype, kv_dtype: Any) -> None:
    assert choose_attention("triton", needs()).name == "triton"
    with pytest.raises(AttentionError, match="use --dtype float32 and --kv-cache-dtype auto"):
        choose_attention("triton", needs(dtype=dtype, kv_dtype=kv_dtype))


def test_a_cpu_without_the_interpreter_is_told_what_triton_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeproot.kernels.launch.INTERPRETED", False)
    with pytest.raises(AttentionError, match="needs a CUDA GPU"):
        choose_attention("triton", needs())


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(attention_choice.importlib.util, "find_spec", lambda name: None)
    for name, package in (("triton", "pip install triton"), ("flash", "pip install flash-attn")):
        with pytest.raises(AttentionError, match=package):
            choose_attention(name, needs(CUDA, torch.bfloat16))


def test_flash_is_never_chosen_by_itself_and_refuses_what_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(attention_choice.importlib.util, "find_spec", lambda name: object())
    assert choose_attention("auto", needs(CUDA, torch.bfloat16)).name == "triton"
    assert choose_attention("flash", needs(CUDA, torch.bfloat16)).name == "flash"
    with pytest.raises(AttentionError, match="use --dtype bfloat16"):
        choose_attention("flash", needs(CUDA))
    with pytest.raises(AttentionError, match="use --kv-cache-dtype auto"):
        choose_attention("flash", needs(CUDA, torch.bfloat16, FP8))
    with pytest.raises(AttentionError, match="needs a CUDA GPU"):
        choose_attention("flash", needs())


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(AttentionError, match="'fast' is not known; known: auto, triton, cpu, torch, flash"):
        choose_attention("fast", needs())


def test_pages_are_moved_by_kernels_where_attention_is() -> None:
    assert isinstance(make_page_ops("triton"), TritonPageOps)
    assert not isinstance(make_page_ops("torch"), TritonPageOps)
