"""Products in e4m3 as far as they go without a Hopper GPU: rounding and scales by hand, layouts by torch's own check."""

import pytest
import torch

from deeproot.engine.fp8_product import fp8_problem, fp8_product, kept_scales, round_rows


@pytest.mark.parametrize("m", [1, 5, 130])
@pytest.mark.parametrize(("n", "k"), [(128, 128), (256, 384), (128, 640)])
def test_torch_accepts_the_layouts(m: int, n: int, k: int) -> None:
    """On tensors without memory torch checks shapes, strides and dtypes as it does for a GPU."""
    x = torch.empty(m, k, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(n, k, dtype=torch.float8_e4m3fn, device="meta")
    scales = torch.empty(n // 128, k // 128, device="meta")
    out = fp8_product(x, weight, kept_scales(scales))
    assert out.shape == (m, n)
    assert out.dtype == torch.bfloat16


def test_torch_refuses_scales_that_are_not_laid_out() -> None:
    """A guard for the test above."""
    x = torch.empty(5, 384, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(256, 384, dtype=torch.float8_e4m3fn, device="meta")
    with pytest.raises(RuntimeError, match="blockwise scaling"):
        fp8_product(x, weight, torch.empty(2, 3, device="meta"))


def test_rows_are_rounded_in_groups_of_128() -> None:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    x[0, :128] *= 1000
    x[1, 128:] = 0
    rounded, scales = round_rows(x.bfloat16())
    assert rounded.dtype == torch.float8_e4m3fn
    for row in range(3):
        for group in range(2):
            part = slice(group * 128, group * 128 + 128)
            original = x.bfloat16().double()[row, part]
            back = rounded[row, part].double() * scales[row, group].double()
            largest = original.abs().max()
            assert (back - original).abs().max() <= largest / 28, "half a step of e4m3 at its largest"
            if largest > 0:
                assert rounded[row, part].float().abs().max() == 448


def test_kept_scales_stand_column_by_column_with_zeros_behind() -> None:
    kept = kept_scales(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert kept.tolist() == [[1, 4], [2, 5], [3, 6], [0, 0]]
    assert kept.stride() == (1, 4)


def test_without_a_hopper_gpu_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert "not a Hopper GPU" in (fp8_problem(torch.device("cpu"), torch.bfloat16, (128, 128)) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert "not a Hopper GPU" in (fp8_problem(cuda, torch.bfloat16, (128, 128)) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert "only bfloat16 with tiles of 128" in (fp8_problem(cuda, torch.float16, (128, 128)) or "")
    assert "only bfloat16 with tiles of 128" in (fp8_problem(cuda, torch.bfloat16, (64, 128)) or "")
