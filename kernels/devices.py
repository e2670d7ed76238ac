"""What the devices that this project is run on can do at best."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of one device. flops: dense multiply-adds count two. `source` says where the numbers come from."""

    name: str
    bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    """None: no fp8 matrix units."""
    exps_per_s: float
    source: str


def _exps(multiprocessors: int, clock: float) -> float:
    """16 exponentials a cycle a multiprocessor."""
    return 16.0 * multiprocessors * clock


DEVICES = {
    device.name: device
    for device in (
        Device(
            "H100 SXM", 3.35e12, 989e12, 1979e12, _exps(132, 1.83e9), "data sheet; exp at the boost clock"
        ),
        Device(
            "H100 PCIe", 2.0e12, 756e12, 1513e12, _exps(114, 1.755e9), "data sheet; exp at the boost clock"
        ),
        Device(
            "H200",
            4.3e12,
            7.9e14,
            1.58e15,
            3.9e12,
            "bytes and bf16 measured on random data; fp8 twice bf16; exp estimated",
        ),
        Device(
            "A100",
            2.039e12,
            312e12,
            None,
            _exps(108, 1.41e9),
            "data sheet of the 80 GB SXM; exp at the boost clock",
        ),
        Device("L40S", 864e9, 362e12, 733e12, _exps(142, 2.52e9), "data sheet; exp at the boost clock"),
        Device("CPU", 1.0e10, 5.0e10, None, 1.0e9, "one server core, by order of magnitude"),
    )
}


def device_named(name: str) -> Device:
    """The device whose entry fits a name as drivers give it ("NVIDIA H100 80GB HBM3"); H100 SXM for any other."""
    model = next((key for key in ("H200", "A100", "L40S") if key in name), "H100 SXM")
    return DEVICES["H100 PCIe" if "H100 PCIe" in name else model]
