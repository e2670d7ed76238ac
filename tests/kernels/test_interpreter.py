"""The mended interpreter (tests/helpers) against torch: bf16 products, bf16 and e4m3 rounding."""

import torch
import triton
import triton.language as tl


@triton.jit
def _dot(a_ptr: tl.tensor, b_ptr: tl.tensor, out_ptr: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def _cast(x_ptr: tl.tensor, out_ptr: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(out_ptr.dtype.element_ty))


def test_bf16_products_are_products() -> None:
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(2))
    out = torch.empty(16, 16)
    _dot[(1,)](a, b, out, N=16)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_conversion_rounds_to_nearest_even_as_torch_does() -> None:
    x = torch.cat(
        (
            torch.randn(1000),
            torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1e-40, 0.0, 3.3e38, float("nan"), float("inf")]),
        )
    )
    x = torch.nn.functional.pad(x, (0, 1024 - len(x)))
    out = torch.empty(1024, dtype=torch.bfloat16)
    _cast[(1,)](x, out, N=1024)
    assert torch.equal(out.nan_to_num(7.0), x.bfloat16().nan_to_num(7.0))
    assert torch.equal(out.isnan(), x.isnan())


def test_e4m3_rounds_as_torch_does_and_overflows_to_nan() -> None:
    x = torch.cat(
        (torch.randn(1000) * 50, torch.tensor([463.0, 500.0, -1e9, 2**-9, 2**-10 * 1.01, 17.0, 19.0]))
    )
    x = torch.nn.functional.pad(x, (0, 1024 - len(x)))
    out = torch.empty(1024, dtype=torch.float8_e4m3fn)
    _cast[(1,)](x, out, N=1024)
    assert torch.equal(out.float().isnan(), x.abs() > 464)
    assert int(out.float().isnan().sum()) == 2
    assert torch.equal(
        out.float().nan_to_num(0.0), torch.where(x.abs() > 464, 0.0, x.to(torch.float8_e4m3fn).float())
    )
