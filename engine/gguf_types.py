"""Types of a GGUF file's metadata and tensors, by the format's numbers and names."""

import numpy as np

BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
SCALAR_DTYPES = {code: np.dtype(name) for code, name in SCALARS.items()}

READABLE_TYPES = frozenset(
    [
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ1_S",
        "IQ1_M",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ2_S",
        "IQ3_XXS",
        "IQ3_S",
        "IQ4_NL",
        "IQ4_XS",
        "TQ1_0",
        "TQ2_0",
        "MXFP4",
        "NVFP4",
    ]
)
"""Of tensors that can be dequantised. The others hold whole numbers, are forms of activations, or are unknown to the `gguf` package."""
