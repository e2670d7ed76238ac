"""Whether a place in Markdown is inside code: what a reply shows there is an example, and nothing to act on."""

_FENCES = ("```", "~~~")


class CodeSpans:
    """Follows a text; see the module. It may come in any pieces."""

    def __init__(self) -> None:
        self._line = ""
        """The line so far."""
        self._fence = ""
        """What opened the fence that is open: its run of backticks or tildes."""

    def feed(self, text: str) -> None:
        """Go on by a piece."""
        for i, part in enumerate(text.split("\n")):
            if i:
                self._end_line()
            self._line += part

    @property
    def inside(self) -> bool:
        """Whether the place that the text has come to is in a fence or between backticks."""
        if self._fence:
            return True
        return bool(_fence_of(self._line)) or self._line.count("`") % 2 == 1

    def _end_line(self) -> None:
        run = _fence_of(self._line)
        if not self._fence:
            self._fence = run
        elif run.startswith(self._fence) and self._line.strip() == run:
            self._fence = ""
        self._line = ""


def _fence_of(line: str) -> str:
    """The run of marks that a line opens or closes a fence with; empty if it does neither."""
    text = line.strip()
    if not text.startswith(_FENCES):
        return ""
    run = text[: len(text) - len(text.lstrip(text[0]))]
    # Three backticks and more of them later on the line are code within the line.
    return "" if "`" in text[len(run) :] and run[0] == "`" else run
