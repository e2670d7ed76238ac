"""Reads the machine code of a kernel: instructions, loops, and what a hot loop does for each instruction it issues.

Input is the text of `nvdisasm -c`. Nothing here runs or times anything: the figures are bounds that rank code on the
same terms.
"""

import re
from collections import Counter
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L[\w.$]*):")
_TARGET = re.compile(r"`\((\.L[\w.$]*)\)")
_WARPGROUP = re.compile(r"^[HIQ]GMMA\.(\d+)x(\d+)x(\d+)")
_WARP = re.compile(r"^[HIQ]MMA\.(\d{2})(\d)(\d{1,2})\b")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction; `target` is the label that a branch names."""

    op: str
    predicated: bool
    target: str | None

    @property
    def name(self) -> str:
        return self.op.split(".", 1)[0]


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in address order, and the index at which each label stands."""

    code: list[Instruction]
    labels: dict[str, int]


def parse(text: str) -> Program:
    """The program in a listing of `nvdisasm -c`. Raises ValueError if there is none."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            target = _TARGET.search(match[3])
            code.append(Instruction(match[2], match[1] is not None, target[1] if target else None))
        elif match := _LABEL.match(line):
            labels[match[1]] = len(code)
    if not code:
        raise ValueError("the listing holds no instruction: expected the output of nvdisasm -c")
    return Program(code, labels)


def matrix_flop(op: str) -> int:
    """Floating-point operations of one matrix instruction for one warp (a warpgroup's are shared by four); else 0."""
    if match := _WARPGROUP.match(op):
        m, n, k = (int(part) for part in match.groups())
        return 2 * m * n * k // 4
    if match := _WARP.match(op):
        m, n, k = (int(part) for part in match.groups())
        return 2 * m * n * k
    return 0


def count(code: list[Instruction]) -> dict[str, int]:
    """How many instructions of each kind that the checks speak of; loads and stores by width."""
    names = Counter(instruction.name for instruction in code)
    wide = Counter(i.name for i in code if ".128" in i.op)
    half = Counter(i.name for i in code if ".64" in i.op)
    return {
        "instructions": len(code) - names["NOP"],
        "hgmma": names["HGMMA"],
        "qgmma": names["QGMMA"],
        "hmma": names["HMMA"],
        "tma_loads": names["UTMALDG"],
        "async_128": wide["LDGSTS"],
        "async_narrow": names["LDGSTS"] - wide["LDGSTS"],
        "loads_128": wide["LDG"],
        "loads_64": half["LDG"],
        "loads_narrow": names["LDG"] - wide["LDG"] - half["LDG"],
        "stores_128": wide["STG"],
        "stores_64": half["STG"],
        "stores_narrow": names["STG"] - wide["STG"] - half["STG"],
        "spills": names["LDL"] + names["STL"],
        "exp2": sum(i.op.startswith("MUFU.EX2") for i in code),
        "flop": sum(matrix_flop(i.op) for i in code),
    }


def _blocks(program: Program) -> tuple[list[int], list[list[int]]]:
    """First instruction of each basic block, and the blocks that may follow each."""
    code, labels = program.code, program.labels
    ends = {"EXIT", "RET", "BRX", "JMX"}
    starts = {0, *labels.values()}
    starts |= {i + 1 for i, one in enumerate(code) if one.name in ends or (one.name == "BRA" and one.target)}
    heads = sorted(start for start in starts if start < len(code))
    index = {head: block for block, head in enumerate(heads)}
    following: list[list[int]] = []
    for block, _ in enumerate(heads):
        last = (heads[block + 1] if block + 1 < len(heads) else len(code)) - 1
        one = code[last]
        after: list[int] = []
        jumps = one.name == "BRA" and one.target is not None
        if jumps and one.target in labels and labels[one.target] in index:
            after.append(index[labels[one.target]])
        # a branch "BRA.U UP0" is conditional by its operand: only a bare BRA without a predicate always jumps
        leaves = one.name in ends or (jumps and one.op == "BRA")
        if (one.predicated or not leaves) and block + 1 < len(heads):
            after.append(block + 1)
        following.append(after)
    return heads, following


def _dominators(following: list[list[int]]) -> list[int]:
    """For each block the set, as bits, of the blocks that every way to it passes."""
    n = len(following)
    before: list[list[int]] = [[] for _ in range(n)]
    for block, after in enumerate(following):
        for other in after:
            before[other].append(block)
    # entries: the first block, and blocks that only a jump table reaches (the warp groups of a specialised kernel)
    entries = {0} | {block for block in range(n) if all(other == block for other in before[block])}
    reached: set[int] = set()
    while len(reached) < n:
        todo = [block for block in entries if block not in reached] or [min(set(range(n)) - reached)]
        entries |= set(todo)
        while todo:
            block = todo.pop()
            if block not in reached:
                reached.add(block)
                todo.extend(following[block])
    everything = (1 << n) - 1
    sets = [1 << block if block in entries else everything for block in range(n)]
    changed = True
    while changed:
        changed = False
        for block in range(n):
            if block in entries:
                continue
            common = everything
            for other in before[block]:
                common &= sets[other]
            common |= 1 << block
            if common != sets[block]:
                sets[block], changed = common, True
    return sets


def loops(program: Program) -> list[list[Instruction]]:
    """The innermost natural loops that hold matrix instructions, in address order.

    A loop is found by a branch to a block that dominates it. Address order alone would mislead: the slow paths of
    barrier waits lie behind the end of a function and branch back into the middle of a loop.
    """
    heads, following = _blocks(program)
    before: list[list[int]] = [[] for _ in following]
    for block, after in enumerate(following):
        for other in after:
            before[other].append(block)
    sets = _dominators(following)
    bodies: dict[int, set[int]] = {}
    for block, after in enumerate(following):
        for head in after:
            if sets[block] >> head & 1:
                body, todo = {head, block}, [block] if block != head else []
                while todo:
                    for other in before[todo.pop()]:
                        if other not in body:
                            body.add(other)
                            todo.append(other)
                bodies[head] = bodies.get(head, set()) | body
    ends = [*heads[1:], len(program.code)]
    found = []
    for _, body in sorted(bodies.items()):
        code = [program.code[i] for block in sorted(body) for i in range(heads[block], ends[block])]
        if any(matrix_flop(one.op) for one in code):
            found.append((body, [one for one in code if one.name != "NOP"]))
    return [code for body, code in found if not any(other < body for other, _ in found)]
