"""What the sources are now, as far as anybody looked, and who made them so."""

import os
from collections.abc import Collection, Iterable, Mapping

from deeproot.runtime.context.invalidation.entities import Entity, EntityKind, Probe, Version
from deeproot.runtime.context.invalidation.look import look, stamp_of

_ON_DISK = (EntityKind.FILE, EntityKind.DIR)
_LOOKED_AT = (*_ON_DISK, EntityKind.PROC)
_OWN_PROCESS = "/proc/self/stat"
"""Where it is missing, as on macOS, processes cannot be looked at."""


class World:
    """Newest known version of each source. `probes`: how the host asks sources of its own for their version."""

    def __init__(self, probes: Mapping[EntityKind, Probe]) -> None:
        for kind in probes:
            if kind in _LOOKED_AT:
                raise ValueError(f"probes has {kind}, which is looked at without one; leave it out")
        self._probes = dict(probes)
        self._known: dict[Entity, Version] = {}
        self._real: dict[Entity, str] = {}
        """Of files and directories: the path without links, as it was when they were first seen."""
        self._own: dict[Entity, tuple[str, int]] = {}
        """What the agent itself left a source as, and the event of the call that did."""

    def version(self, entity: Entity, now_ns: int, *, closely: bool = False) -> Version | None:
        """The version now; None where only time can tell. `closely`: hash it even if stat says that nothing moved."""
        if entity.kind is EntityKind.PROC and not os.path.exists(_OWN_PROCESS):
            return None
        if entity.kind in _LOOKED_AT:
            found = look(entity, None if closely else self._known.get(entity))
        else:
            probe = self._probes.get(entity.kind)
            said = probe(entity) if probe is not None else None
            if said is None:
                return None
            found = Version(said, now_ns)
        self._known[entity] = found
        if entity.kind in _ON_DISK and entity not in self._real:
            self._real[entity] = os.path.realpath(entity.name)
        return found

    def moved(
        self, entities: Iterable[Entity], now_ns: int, closely: Collection[Entity]
    ) -> dict[Entity, str]:
        """Identities now of those that may have moved; the others were seen to be as they were known."""
        found: dict[Entity, str] = {}
        stat, known = os.stat, self._known
        for entity in entities:
            version = known.get(entity)
            near = bool(closely) and entity in closely
            if version is not None and version.settled and version.stamp and not near:
                try:
                    s = stat(entity.name)
                    # as `stamp_of` has it, without its call: this line is all that most checks do
                    if (s.st_dev, s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) == version.stamp:
                        continue
                except OSError:
                    pass
            looked = self.version(entity, now_ns, closely=near)
            if looked is not None:
                found[entity] = looked.identity
        return found

    def forget(self, entities: Iterable[Entity]) -> None:
        """Drop what is known of sources to which nothing is bound any more."""
        for entity in entities:
            self._known.pop(entity, None)
            self._real.pop(entity, None)
            self._own.pop(entity, None)

    def touched_by(self, paths: Iterable[str], entities: Iterable[Entity]) -> set[Entity]:
        """Of `entities`, those that a write to `paths` can have changed: by that name, by another name of the same
        file, inside one of them, or as the directory that holds it."""
        names: set[str] = set()
        inodes: set[tuple[int, ...]] = set()
        for path in paths:
            path = os.path.abspath(path)
            names |= {path, os.path.realpath(path)}
            try:
                inodes.add(stamp_of(os.stat(path))[:2])
            except OSError:
                continue
        parents = {os.path.dirname(name) for name in names}
        # only what is no file can be, or have been, a folder that held something
        inside = tuple(name.rstrip(os.sep) + os.sep for name in names if not os.path.isfile(name))
        touched: set[Entity] = set()
        for entity in entities:
            if entity.kind not in _ON_DISK:
                continue
            known = self._known.get(entity)
            both = (entity.name, self._real.get(entity, entity.name))
            by_name = any(n in names or n.startswith(inside) for n in both)
            by_inode = known is not None and known.stamp[:2] in inodes
            holds = entity.kind is EntityKind.DIR and any(n in parents for n in both)
            if by_name or by_inode or holds:
                touched.add(entity)
        return touched

    def wrote(self, by: int, identities: Mapping[Entity, str]) -> None:
        """Remember what the call of event `by` left sources as."""
        for entity, identity in identities.items():
            self._own[entity] = (identity, by)

    def writer(self, entity: Entity, identity: str) -> int | None:
        """Event of the agent's own call that made a source what it is; None: somebody else did."""
        made, by = self._own.get(entity, (None, 0))
        return by if made == identity else None
