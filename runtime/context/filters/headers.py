"""HTTP headers and transfer meters of downloads: curl, wget, pip, git, Maven, apt."""

import re

from deeproot.runtime.context.filters.base import Drop, FilterContext, FilterResult

# Lines of a transfer that say nothing when it went well. What names an error, a redirect or a file is not here.
_NOISE = re.compile(
    "|".join(
        (
            r"\s*% Total    % Received % Xferd  Average Speed",
            r"\s*Dload  Upload   Total   Spent    Left  Speed\s*$",
            r"\s*\d+ +[\d.]+[kMG]? +\d+ +[\d.]+[kMG]? +\d+ +[\d.]+[kMG]? +[\d.]+[kMG]? +[\d.]+[kMG]? +[\d:-]+ +[\d:-]+",
            r"\s*\d+[KMG]? (?:[. ,]{10} ?)+ *\d+% +[\d.]+[KMG]?(?: |=)[\d.]+[smhd]",
            r"[^\s%]+ +\d+%\[[=>+ -]*\] +[\d.,]+[KMG]? ",
            r" *[━╸╺\-#=> ]{20,} *[\d.]+/[\d.]+ [kMG]?B ",
            r"(?:remote: )?(?:Enumerating|Counting|Compressing|Receiving|Resolving|Unpacking|Writing) (?:objects|deltas): .*"
            r"\bdone\.$",
            r"remote: Total \d+ \(delta \d+\)",
            r"(?:\[INFO\] )?(?:Downloading|Downloaded) from \S+: \S+",
            r"Progress \(\d+\): ",
            r"Get:\d+ \S+ \S+ .* \[[\d.,]+ [kMG]?B\]$",
            r"\* +(?:Trying [\da-f.:\[\]]+|Connected to |Mark bundle|Using HTTP|ALPN|TLSv1|successfully set certificate"
            r"|Server certificate:| subject:| start date:| expire date:| issuer:| CA(?:file|path):|SSL certificate verify ok"
            r"|SSL connection using|old SSL session|Closing connection|Connection #\d+ to host|HTTP 1\.0, assume close"
            r"|Request completely sent|using HTTP|\[HTTP/2\]|h2h3|TCP_NODELAY)",
            r"[{}] \[\d+ bytes data\]$",
            r"[<>] ?$",
            r"> (?!Host: )[A-Z][\w-]*: ",
        )
    )
)
# Response headers that carry meaning for whoever reads on.
_TELLING = re.compile(
    r"(?:location|content-type|www-authenticate|retry-after|x-ratelimit[\w-]*|x-error[\w-]*):", re.I
)
_STATUS = re.compile(r"(< )?HTTP/[\d.]+ \d{3}")
_HEADER = re.compile(r"[A-Za-z][\w-]*: ")
_WGET_NOISE = re.compile(
    r"(?:Resolving \S+ .*|Connecting to .*connected\.|HTTP request sent, awaiting response\.\.\. 200 .*"
    r"|Length: .*|Saving to: .*)$"
)
_KEYS = (
    "% Received", "HTTP/", "HTTP request sent", "B/s eta ", ", done.", "Downloading from ", "Downloaded from ", "Get:1 ",
    "Progress (", " 100%[",
)  # fmt: skip
_FIRST = frozenset(" \t0123456789*{}<>[rECRUWDPG")
"""What a noise line starts with, but for wget's bar, which starts with a file's name."""


class HeaderFilter:
    """Drops request and response headers, connection chatter and meters of transfers that went well.

    Request lines, status lines, redirects, content types and every error stay.
    """

    name = "http headers"

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """The text without them."""
        if not any(key in text for key in _KEYS):
            return FilterResult(text)
        lines = text.split("\n")
        gone = [
            (line[:1] in _FIRST or "%[" in line) and bool(line) and _NOISE.match(line) is not None
            for line in lines
        ]
        _responses(lines, gone)
        if "HTTP request sent" in text:
            _wget(lines, gone)
        return _without(text, lines, gone)


def _responses(lines: list[str], gone: list[bool]) -> None:
    """Headers after each status line, up to the empty line; in curl -v form each line starts with `< `."""
    inside: str | None = None
    for i, line in enumerate(lines):
        if match := _STATUS.match(line):
            inside = match[1] or ""
        elif inside is not None:
            bare = line[len(inside) :] if line.startswith(inside) else None
            if bare is None or not _HEADER.match(bare):
                gone[i] |= bare == "" != inside  # curl -i: the empty line parts headers from body
                inside = None
            elif not _TELLING.match(bare):
                gone[i] = True


def _wget(lines: list[str], gone: list[bool]) -> None:
    """wget's preamble after its `--date--  URL` line."""
    inside = False
    for i, line in enumerate(lines):
        if re.match(r"--[\d -:]+--  \S", line):
            inside = True
        elif inside and _WGET_NOISE.match(line):
            gone[i] = True
        elif inside and line.strip() and not gone[i]:
            inside = False


def _without(text: str, lines: list[str], gone: list[bool]) -> FilterResult:
    if not any(gone):
        return FilterResult(text)
    out: list[str] = []
    drops: list[Drop] = []
    start: int | None = None
    for i, line in enumerate([*lines, ""]):
        if i < len(lines) and gone[i]:
            start = i if start is None else start
            continue
        if start is not None:
            drops.append(Drop("http headers", start + 1, i, 0, i - start))
            start = None
        if i < len(lines):
            out.append(line)
    if not any(line.strip() for line in out):
        # An empty observation would read as if the command had printed nothing.
        note = f"[transfer meter, {len(lines)} lines]"
        return FilterResult(note, (Drop("http headers", 1, len(lines), 1, len(lines)),))
    return FilterResult("\n".join(out), tuple(drops))
