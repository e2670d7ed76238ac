"""What a caller may ask of an output's form."""

from dataclasses import dataclass, fields
from typing import Any

from deeproot.runtime.sampling_options import OptionError

JsonSchema = dict[str, Any] | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The form that an output must have; exactly one field is given. None means "not said".

    Raises OptionError if none or several are given.
    """

    json: JsonSchema | None = None
    """A JSON schema."""
    json_object: bool | None = None
    """Any JSON object; only True says something."""
    regex: str | None = None
    """The whole output matches it. Rust's syntax, without look-around, back references and word boundaries."""
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """Lark as llguidance reads it, with a rule `start`, or GBNF with a rule `root`."""

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if len(given) != 1:
            names = ", ".join(field.name for field in fields(self))
            what = f"got {' and '.join(given)}" if given else "got none"
            raise OptionError(
                "structured_outputs", f"structured_outputs takes exactly one of {names}; {what}."
            )

    @property
    def is_json(self) -> bool:
        """Whether the output is JSON, which no stop string may cut."""
        return self.json is not None or self.json_object is not None
