"""What `run` does: a command, and what it showed, changed or tested."""

from collections.abc import Iterable

from blake3 import blake3

from deeproot.runtime.agent.arguments import Run
from deeproot.runtime.agent.jail import Jail, JailError
from deeproot.runtime.agent.outcome import Outcome
from deeproot.runtime.agent.shell import Shell
from deeproot.runtime.context.extract.extract import extract, worth_extracting
from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.invalidation.entities import Entity, EntityKind, Version, file_entity
from deeproot.runtime.context.invalidation.invalidator import Invalidator

_ON_DISK = (EntityKind.FILE, EntityKind.DIR)
_MOST_INPUTS = 200
_UNREADABLE = 0.1
"""Output with a larger share of bytes that are no text is not shown."""


class Running:
    """Runs commands of one workspace."""

    def __init__(self, shell: Shell, jail: Jail, known: Invalidator) -> None:
        self._shell = shell
        self._jail = jail
        self._known = known

    async def run(self, asked: Run) -> Outcome:
        """What moved while the command ran is taken for its work."""
        self._known.check()
        before = self._versions()
        shown = self._known.reading(self._shown(asked.command)).versions
        tested = worth_extracting(asked.command)
        ran = await self._shell.run(asked.command, asked.timeout_s)
        self._known.check()
        wrote = {
            entity.name: identity
            for entity, identity in self._versions().items()
            if identity != before.get(entity, identity)
        }
        output, raw = _readable(ran.output)
        if ran.why:
            output += (b"" if output.endswith(b"\n") or not output else b"\n") + f"[{ran.why}]".encode()
        if not output:
            output = b"[no output]"
        inputs = self._inputs(ran.output, before) if tested else {}
        return Outcome(
            output,
            ran.exit_code,
            shows=shown if ran.exit_code == 0 else {},
            inputs=inputs,
            wrote=wrote,
            target=" ".join(asked.command.split()) if inputs else "",
            raw=raw,
        )

    def _versions(self) -> dict[Entity, str]:
        """Files and folders that something in the log is bound to."""
        graph = self._known.graph
        found = ((entity, graph.current(entity)) for entity in graph.entities() if entity.kind in _ON_DISK)
        return {entity: identity for entity, identity in found if identity is not None}

    def _shown(self, command: str) -> list[Entity]:
        """The file that a command such as `cat` prints."""
        path = ActionReader(self._jail.root).command(command, "", 0).shows
        if path is None:
            return []
        try:
            return [file_entity(self._jail.absolute(self._jail.real(path)))]
        except JailError:
            return []

    def _inputs(self, output: bytes, before: dict[Entity, str]) -> dict[Entity, Version | None]:
        """What a build or test can have depended on: files that the model has seen, and those that it names."""
        files = {e: Version(identity, 0) for e, identity in before.items() if e.kind is EntityKind.FILE}
        named = self._named(d.file for d in extract(output.decode("utf-8", "replace")).diagnostics if d.file)
        made: dict[Entity, Version | None] = dict(list(files.items())[:_MOST_INPUTS])
        made.update({e: v for e, v in self._known.reading(named).versions.items() if e not in made})
        return made

    def _named(self, paths: Iterable[str]) -> list[Entity]:
        found: dict[Entity, None] = {}
        for path in paths:
            try:
                if self._jail.exists(path):
                    found[file_entity(self._jail.absolute(self._jail.real(path)))] = None
            except JailError:
                continue
        return list(found)[:_MOST_INPUTS]


def _readable(output: bytes) -> tuple[bytes, bytes]:
    """The output as it is to be shown, and the bytes that it had if they are no text."""
    strange = output.decode("utf-8", "replace").count("\ufffd") + output.count(b"\0")
    if strange <= _UNREADABLE * len(output):
        return output, b""
    return f"[binary output, {len(output)} bytes, BLAKE3 {blake3(output).hexdigest()}]".encode(), output
