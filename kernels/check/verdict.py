"""From a kernel's measured facts to its figures and to what is wrong with it."""

from typing import Any

from deeproot.kernels.check.cases import Case
from deeproot.kernels.configs import SHARED_LIMIT

HBM_BYTES = 3.35e12 / 132 / 1.83e9 / 4
"""Bytes of device memory a cycle for each of an H100's 4 * 132 schedulers."""
REGISTER_SLACK = 1.10
FIGURE_SLACK = 0.95
WIDTHS = (
    "async_128",
    "async_narrow",
    "loads_128",
    "loads_64",
    "loads_narrow",
    "stores_128",
    "stores_64",
    "stores_narrow",
)


def hot_loop(case: Case, facts: dict[str, Any]) -> dict[str, int] | None:
    """The loop that decides: of the plain forms the one without a mask, of a specialised one the worse of its two."""
    loops: list[dict[str, int]] = facts["loops"]
    if case.tile is None or not loops:
        return None
    pick = max if case.specialised else min
    return pick(loops, key=lambda loop: loop["instructions"] / loop["flop"])


def needed_flop(case: Case, facts: dict[str, Any], loop: dict[str, int]) -> float:
    """FLOP of the algorithm in one pass of the loop, for one warp: padding and repeated products do not count."""
    assert case.tile is not None
    rows, tokens, dim = case.tile
    padded = 1 << (dim - 1).bit_length()
    # a specialised kernel's matrix warps come in groups of four, one loop a group
    warps = 4 * len(facts["loops"]) if case.specialised else facts["warps"]
    # fp8 queries are two terms: K is multiplied twice
    done = (6 if case.kv_bytes == 1 else 4) * rows * tokens * padded / warps
    passes = max(1, round(loop["flop"] / done))
    return min(4 * rows * tokens * dim / warps * passes, loop["flop"])


def figures(case: Case, facts: dict[str, Any]) -> dict[str, float]:
    """`F`: needed matrix FLOP for each warp instruction of the hot loop. `rate`, for decode: instructions a cycle that a
    scheduler must issue for the loop to take KV as fast as the memory gives it (1 is the most that it can)."""
    loop = hot_loop(case, facts)
    if loop is None or case.tile is None:
        return {}
    f = needed_flop(case, facts, loop) / loop["instructions"]
    if case.phase != "decode":
        return {"F": round(f)}
    kv_bytes = f * case.kv_bytes / (2 * case.tile[0])
    return {"F": round(f), "rate": round(HBM_BYTES / kv_bytes, 3)}


def budget(case: Case, facts: dict[str, Any]) -> dict[str, Any]:
    """What budgets.json keeps of a case."""
    code = facts["code"]
    kept = {name: code[name] for name in WIDTHS if code[name]}
    return {
        "registers": facts["registers"],
        "shared": facts["shared"],
        "warps": facts["warps"],
        **kept,
        **figures(case, facts),
    }


def _structure(case: Case, facts: dict[str, Any]) -> list[str]:
    """What no budget can excuse."""
    code, wrong = facts["code"], []
    if code["spills"] or facts["stack"]:
        wrong.append(f"{code['spills']} spill instructions and {facts['stack']} bytes of stack, must be none")
    if facts["shared"] > SHARED_LIMIT:
        wrong.append(f"{facts['shared']} bytes of shared memory, the device has {SHARED_LIMIT}")
    if case.matrix and not code[case.matrix]:
        wrong.append(f"no {case.matrix.upper()}, this configuration is meant to use it")
    if case.specialised and (facts["warps"] != 12 or len(facts["loops"]) != 2 or not code["tma_loads"]):
        wrong.append(
            f"warp specialisation is gone: {facts['warps']} warps (12 wanted), {len(facts['loops'])} matrix loops (2 wanted)"
        )
    loop = hot_loop(case, facts)
    if case.tile is None:
        return wrong
    if loop is None:
        return [*wrong, "no loop with matrix instructions"]
    if case.loads == "tma" and code["tma_loads"] < 2:
        wrong.append(f"{code['tma_loads']} TMA loads, K and V must come by TMA")
    if case.loads in ("async", "wide"):
        _, tokens, dim = case.tile
        padded = 1 << (dim - 1).bit_length()
        wanted = 2 * tokens * padded * case.kv_bytes // (16 * 32 * facts["warps"])
        have = loop["async_128"] + (loop["loads_128"] if case.loads == "wide" else 0)
        if have < wanted or (case.loads == "async" and loop["loads_128"]):
            wrong.append(f"{have} {case.loads} 128-bit loads a pass, K and V need {wanted}")
    return wrong


def problems(case: Case, facts: dict[str, Any], kept: dict[str, Any] | None, *, gated: bool) -> list[str]:
    """What is wrong with a case, in words; empty if nothing is.

    kept: the case's entry of budgets.json. An entry's "missed" names gates that the committed code is known to miss:
    those are reported, and only its own figures hold. gated: whether the design's gates apply (Triton 3.9).
    """
    wrong = _structure(case, facts)
    now = budget(case, facts)
    if kept is None:
        return [*wrong, "not in budgets.json: run scripts/kernel_check --update and commit the change"]
    if now["registers"] > kept["registers"] * REGISTER_SLACK:
        wrong.append(f"{now['registers']} registers, over 110% of the {kept['registers']} committed")
    for name in WIDTHS:
        have, had = now.get(name, 0), kept.get(name, 0)
        if have < had if name.endswith("128") else have > had:
            wrong.append(f"{have} {name}, committed are {had}")
    if "F" in kept and now.get("F", 0) < kept["F"] * FIGURE_SLACK:
        wrong.append(f"F {now.get('F')}, under 95% of the {kept['F']} committed")
    if "rate" in kept and now.get("rate", 1e9) > kept["rate"] / FIGURE_SLACK:
        wrong.append(f"rate {now.get('rate')}, worse than the {kept['rate']} committed by over 5%")
    if gated and not kept.get("missed") and (short := missed(case, now)):
        wrong.append(short)
    return wrong


def missed(case: Case, now: dict[str, Any]) -> str:
    """The design's gate that a case does not reach, in words; empty if it reaches it or has none."""
    if case.gate_f is not None and now.get("F", 0) < case.gate_f:
        return f"F {now.get('F')}, gate at least {case.gate_f}"
    if case.gate_rate is not None and round(now.get("rate", 1e9), 2) > case.gate_rate:
        return f"rate {now.get('rate')}, gate at most {case.gate_rate}"
    return ""
