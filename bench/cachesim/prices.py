"""What hosted models' tokens cost, as data files with date and source, and what a served call costs under them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeproot.bench.cachesim.call import CacheModel, Served
from deeproot.bench.cachesim.hosted import AutomaticCache, BreakpointCache, HostedRules

PRICES = Path(__file__).parents[1] / "data" / "prices.json"
_MILLION = 1_000_000


class PriceFileError(ValueError):
    """A price file is not of the form that is asked for. The message names the field."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Dollars per million tokens of one model. `written`: of input tokens that are put in the cache."""

    name: str
    as_of: str
    source: str
    input: float
    cached: float
    written: float
    output: float
    rules: HostedRules

    def dollars(self, prompt: int, served: Served, output: int) -> float:
        """Of one call of `prompt` input tokens and `output` answered ones."""
        plain = prompt - served.cached - served.written
        spent = plain * self.input + served.cached * self.cached + served.written * self.written
        return (spent + output * self.output) / _MILLION

    def cache(self) -> CacheModel:
        """A fresh cache under this provider's rules."""
        kind = BreakpointCache if self.rules.breakpoints else AutomaticCache
        return kind(self.name, self.rules)


def read_prices(path: Path = PRICES) -> list[PriceTable]:
    """The tables of a JSON list. Raises `PriceFileError`, naming what is wrong, or OSError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PriceFileError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, list) or not found:
        raise PriceFileError(f"{path}: give a list of at least one price table")
    return [_table(entry, f"{path}: [{i}]") for i, entry in enumerate(found)]


def _table(entry: Any, where: str) -> PriceTable:
    if not isinstance(entry, dict):
        raise PriceFileError(f"{where} is {type(entry).__name__}; give an object")
    texts: dict[str, Any] = {name: entry.get(name) for name in ("name", "as_of", "source")}
    numbers: dict[str, Any] = {name: entry.get(name) for name in ("input", "cached", "written", "output")}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise PriceFileError(f"{where}.{name} is missing; give a text")
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 1e6:
            raise PriceFileError(f"{where}.{name} is {number!r}; give dollars per million tokens")
    return PriceTable(**texts, **numbers, rules=_rules(entry.get("rules"), f"{where}.rules"))


def _rules(entry: Any, where: str) -> HostedRules:
    kinds: dict[str, tuple[type, ...]] = {
        "min_tokens": (int,),
        "increment": (int,),
        "ttl_s": (int, float, type(None)),
        "breakpoints": (bool,),
        "look_back": (int,),
    }
    if not isinstance(entry, dict):
        raise PriceFileError(f"{where} is missing; give an object")
    for name, value in entry.items():
        if name not in kinds:
            raise PriceFileError(f"{where}.{name} is not known; give {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or (isinstance(value, bool) and bool not in kinds[name]):
            raise PriceFileError(f"{where}.{name} is {value!r}; give {kinds[name][0].__name__}")
    try:
        return HostedRules(**entry)
    except ValueError as error:
        raise PriceFileError(f"{where}.{error}") from None
