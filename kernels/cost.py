"""What each kernel must move and compute at the least, and the time that takes on a device at best.

A floor counts each input byte once and no latency: measured time over floor says how far a kernel is from perfect, never
that it is. Triton is not needed here.
"""

from dataclasses import dataclass

from deeproot.kernels.devices import Device


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of device memory, matrix FLOP in bf16 and in fp8, and exponentials."""

    bytes: float = 0.0
    flops: float = 0.0
    fp8_flops: float = 0.0
    exps: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.fp8_flops + other.fp8_flops,
            self.exps + other.exps,
        )


def floor_seconds(cost: Cost, device: Device) -> float:
    """The longest of the times for bytes, FLOP and exponentials.

    Raises ValueError if the cost has fp8 FLOP and the device no fp8 units.
    """
    matrix = cost.flops / device.bf16_flops
    if cost.fp8_flops:
        if device.fp8_flops is None:
            raise ValueError(
                f"{device.name} has no fp8 matrix units, the cost has {cost.fp8_flops:.3g} fp8 FLOP"
            )
        matrix += cost.fp8_flops / device.fp8_flops
    return max(cost.bytes / device.bytes_per_s, matrix, cost.exps / device.exps_per_s)


def attended(new: int, cached: int, window: int = 0) -> int:
    """(query, key) pairs of `new` tokens behind `cached` ones under a causal mask, each seeing at most `window` tokens."""
    if not window:
        return new * cached + new * (new + 1) // 2
    growing = min(max(window - cached, 0), new)
    return growing * cached + growing * (growing + 1) // 2 + (new - growing) * window


def paged_prefill(
    sequences: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    itemsize: int = 2,
    kv_itemsize: int = 2,
    window: int = 0,
) -> Cost:
    """Attention of one layer over sequences of (new, cached) tokens: K and V read once, q read and out written once."""
    pairs = sum(attended(new, cached, window) for new, cached in sequences)
    read = sum(new + (min(cached, window) if window else cached) for new, cached in sequences)
    new = sum(new for new, _ in sequences)
    moved = 2 * read * kv_heads * head_dim * kv_itemsize + new * heads * (2 * head_dim * itemsize + 4)
    products = 2.0 * pairs * heads * head_dim
    if kv_itemsize == 1:
        # K by a query of two fp8 terms, V in fp16
        return Cost(moved, flops=products, fp8_flops=2 * products, exps=float(pairs * heads))
    return Cost(moved, flops=2 * products, exps=float(pairs * heads))


def paged_decode(
    lengths: list[int], heads: int, kv_heads: int, head_dim: int, *, kv_itemsize: int = 2, window: int = 0
) -> Cost:
    """Attention of one layer of one new token a sequence; lengths count the new token. Without the merge."""
    return paged_prefill(
        [(1, length - 1) for length in lengths],
        heads,
        kv_heads,
        head_dim,
        kv_itemsize=kv_itemsize,
        window=window,
    )


def cascade(
    prefix: int, suffixes: list[int], heads: int, kv_heads: int, head_dim: int, *, kv_itemsize: int = 2
) -> Cost:
    """Decode of sequences that share `prefix` tokens: the prefix is read once for all."""
    sequences = [(1, prefix + suffix - 1) for suffix in suffixes]
    return cascade_prefill(prefix, sequences, heads, kv_heads, head_dim, kv_itemsize=kv_itemsize)


def cascade_prefill(
    prefix: int,
    sequences: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    kv_itemsize: int = 2,
) -> Cost:
    """As `paged_prefill`, of sequences whose first `prefix` cached tokens are the same and read once for all."""
    apart = paged_prefill(sequences, heads, kv_heads, head_dim, kv_itemsize=kv_itemsize)
    again = 2 * prefix * (len(sequences) - 1) * kv_heads * head_dim * kv_itemsize
    return Cost(apart.bytes - again, apart.flops, apart.fp8_flops, apart.exps)


def merge_states(levels: int, rows: int, heads: int, head_dim: int, *, itemsize: int = 2) -> Cost:
    """Merge of `levels` float32 states a row into one of `itemsize` bytes a value."""
    return Cost(
        float(rows * heads * (levels * (4 * head_dim + 4) + itemsize * head_dim + 4)),
        exps=float(levels * rows * heads),
    )


def store_kv(
    tokens: int, heads: int, kv_heads: int, head_dim: int, *, itemsize: int = 2, kv_itemsize: int = 2
) -> Cost:
    """q, k and v read, q and the cache written, one row of the float32 table and two int64 a token."""
    values = tokens * head_dim * (2 * heads * itemsize + 2 * kv_heads * (itemsize + kv_itemsize))
    return Cost(float(values + tokens * (4 * head_dim + 16)))


def rmsnorm(rows: int, columns: int, *, itemsize: int = 2, residual: bool = False) -> Cost:
    """Each row read and written once, with a residual twice; the weight once."""
    return Cost(float(itemsize * columns * (rows * (4 if residual else 2) + 1)))


def silu_mul(rows: int, columns: int, *, itemsize: int = 2) -> Cost:
    """Two columns read for one written."""
    return Cost(float(3 * itemsize * rows * columns), exps=float(rows * columns))


def sample(rows: int, vocabulary: int, *, itemsize: int = 4) -> Cost:
    """The logits read once; further passes come from the cache."""
    return Cost(float(rows * (vocabulary * itemsize + 44)), exps=float(rows * vocabulary))


def relocate(tokens: int, layers: int, kv_heads: int, head_dim: int, *, kv_itemsize: int = 2) -> Cost:
    """K and V read and written in every layer, the table read once."""
    return Cost(float(4 * tokens * layers * kv_heads * head_dim * kv_itemsize + tokens * (4 * head_dim + 16)))


def copy_pages(
    pages: int,
    kept_tokens: int,
    page_size: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    *,
    kv_itemsize: int = 2,
) -> Cost:
    """One pool (K or V): kept tokens read, whole pages written."""
    token = layers * kv_heads * head_dim * kv_itemsize
    return Cost(float((kept_tokens + pages * page_size) * token))


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, *, kv_itemsize: int = 2) -> int:
    """Bytes of K and V of one token over all layers."""
    return 2 * layers * kv_heads * head_dim * kv_itemsize


def latent_kv_bytes_per_token(layers: int, latent_dim: int, rope_dim: int, *, itemsize: int = 2) -> int:
    """The same for multi-head latent attention, which keeps one latent and one rotary key for all heads."""
    return layers * (latent_dim + rope_dim) * itemsize


@dataclass(frozen=True, slots=True)
class PrefillEstimate:
    """FLOP of a dense decoder's whole prefill."""

    linear: int
    attention: int

    @property
    def flops(self) -> int:
        return self.linear + self.attention

    @property
    def attention_share(self) -> float:
        return self.attention / self.flops

    def seconds(self, peak_flops: float, utilisation: float) -> float:
        """Time at a share of the peak."""
        return self.flops / (peak_flops * utilisation)


def prefill_estimate(
    tokens: int, layers: int, d_model: int, parameters: int | None = None
) -> PrefillEstimate:
    """Two FLOP a token and weight, 4 * tokens * d_model a token and layer for attention without a causal saving.

    `parameters`: how many weights (None: 12 * d_model^2 a layer, the rule of thumb).
    """
    weights = 12 * layers * d_model**2 if parameters is None else parameters
    return PrefillEstimate(2 * weights * tokens, 4 * layers * tokens**2 * d_model)


def attention_crossover(d_model: int) -> int:
    """The length from which attention's FLOP exceed the weights' in `prefill_estimate`."""
    return 6 * d_model
