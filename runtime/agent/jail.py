"""Files of a workspace, opened so that no name, link or race leads out of it."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deeproot.runtime.context.invalidation.look import stamp_of

_MOST_LINKS = 32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES = 3
_MOST_DEPTH = 100


class JailError(Exception):
    """A path that cannot be had: it leads out of the workspace, is missing, or is of the wrong kind. One line, for the
    model."""


class MissingError(JailError):
    """There is no such file or folder."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Bytes of one moment. `path`: without links, relative to the workspace. `stamp`: as `look.stamp_of` has it; of a
    file that kept changing while it was read, empty."""

    path: str
    data: bytes
    stamp: tuple[int, ...]
    size: int
    """Of the whole file; `data` may be shorter."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A name in an open folder. `parts`: of the folder, from the workspace on."""

    folder: int
    name: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/".join((*self.parts, self.name))


class Jail:
    """The folder `root` and what is in it.

    A path is walked one name at a time, each opened relative to the folder before it and never through a link; links
    are read and walked the same way, so they may point anywhere inside. `..` goes back to the folder that was opened, not
    to where that may have been moved since. So there is no moment between a check and the use of what was checked.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Raises NotADirectoryError if `root` is no folder."""
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise NotADirectoryError(
                f"{os.fspath(root)} is no folder; give the workspace in which the agent works"
            )
        self._root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._root)

    def absolute(self, path: str) -> str:
        """The path under which the host knows a file of the workspace; of the name only, nothing is looked at."""
        return os.path.join(self.root, path)

    def read(self, path: str, most: int) -> ReadFile:
        """The first `most` bytes of a regular file. Raises JailError."""
        with self._at(path) as place:
            descriptor = _open(place, _FILE, path)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise JailError(f"{path} is no regular file")
                for _ in range(_TRIES):
                    before = stamp_of(os.fstat(descriptor))
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    data = _read(descriptor, most)
                    if stamp_of(os.fstat(descriptor)) == before:
                        return ReadFile(place.path, data, before, before[4])
                return ReadFile(place.path, data, (), os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)

    def write(self, path: str, data: bytes) -> str:
        """Put a file in place of what the path names, whole or not at all, and give its path without links.

        Folders that are missing are made. A file that is there gives its permissions, and other hard links to it keep the
        old bytes. Raises JailError.
        """
        with self._at(path, make=True) as place:
            mode = 0o644
            with suppress(FileNotFoundError):
                there = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
                if not stat.S_ISREG(there.st_mode):
                    raise JailError(f"{path} is no regular file")
                mode = stat.S_IMODE(there.st_mode) & 0o777
            temporary = f".{place.name[:200]}.deeproot-new"
            try:
                self._replace(place, temporary, data, mode)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=place.folder)
                raise _failed(path, error) from None
            return place.path

    def walk(self, path: str) -> Iterator[str]:
        """Regular files under a folder, or the file itself, by name, without following links. Raises JailError."""
        with self._at(path or ".") as place:
            try:
                folder = os.open(place.name, _FOLDER, dir_fd=place.folder)
            except NotADirectoryError:
                yield place.path
                return
            except OSError as error:
                raise _failed(path, error) from None
            parts = place.parts if place.name == "." else (*place.parts, place.name)
        yield from _walk(folder, "/".join(parts))

    def names(self, path: str) -> list[str] | None:
        """The names in a folder, folders with a slash, sorted; None if the path is no folder. Raises JailError."""
        with self._at(path) as place:
            try:
                folder = os.open(place.name, _FOLDER, dir_fd=place.folder)
            except NotADirectoryError:
                return None
            except OSError as error:
                raise _failed(path, error) from None
        try:
            with os.scandir(folder) as entries:
                return sorted(e.name + "/" if e.is_dir(follow_symlinks=False) else e.name for e in entries)
        finally:
            os.close(folder)

    def exists(self, path: str) -> bool:
        """Whether anything is there. Raises JailError if the path leads out."""
        try:
            with self._at(path) as place:
                os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        except OSError:
            return False
        except MissingError:
            return False
        return True

    def real(self, path: str) -> str:
        """The path without links, relative to the workspace. Raises JailError."""
        with self._at(path) as place:
            return place.path

    @contextmanager
    def _at(self, path: str, *, make: bool = False) -> Iterator[_Place]:
        """Follow a path up to its last name, which is left unopened and is no link."""
        names = self._names(path)
        links = 0
        with ExitStack() as open_folders:
            trail: list[tuple[int, str]] = [(self._root, "")]
            while names:
                name = names.pop(0)
                folder = trail[-1][0]
                if name == "..":
                    if len(trail) == 1:
                        raise JailError(f"{path} leads out of the workspace")
                    trail.pop()
                    continue
                target = _link_target(folder, name)
                if target is not None:
                    links += 1
                    if links > _MOST_LINKS:
                        raise JailError(f"{path} goes through more than {_MOST_LINKS} links")
                    if target.startswith("/"):
                        del trail[1:]
                    names = self._names(target) + names
                elif names:
                    if make:
                        with suppress(FileExistsError):
                            os.mkdir(name, dir_fd=folder)
                    inner = _open(_Place(folder, name, ()), _FOLDER, path)
                    open_folders.callback(os.close, inner)
                    trail.append((inner, name))
                else:
                    yield _Place(folder, name, tuple(part for _, part in trail[1:]))
                    return
            yield _Place(trail[-1][0], ".", tuple(part for _, part in trail[1:]))

    def _names(self, path: str) -> list[str]:
        """The names to walk, from the workspace on. An absolute path must start with the workspace's own."""
        if "\0" in path:
            raise JailError("the path has a zero byte in it")
        if path.startswith("/"):
            inside = path == self.root or path.startswith(self.root.rstrip("/") + "/")
            if not inside:
                raise JailError(f"{path} leads out of the workspace")
            path = path[len(self.root) :]
        return [name for name in path.split("/") if name not in ("", ".")]

    def _replace(self, place: _Place, temporary: str, data: bytes, mode: int) -> None:
        with suppress(FileNotFoundError):  # of a write that was killed
            os.unlink(temporary, dir_fd=place.folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode, dir_fd=place.folder)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        os.fsync(place.folder)


def display(path: str | Path, root: str) -> str:
    """A path as the model knows it: relative to the workspace where it is inside."""
    name = os.fspath(path)
    return os.path.relpath(name, root) if name.startswith(root.rstrip("/") + "/") else name


def _link_target(folder: int, name: str) -> str | None:
    """Where a link points; None for all else, also for what is missing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _open(place: _Place, flags: int, path: str) -> int:
    try:
        return os.open(place.name, flags, dir_fd=place.folder)
    except OSError as error:
        raise _failed(path, error) from None


def _failed(path: str, error: OSError) -> JailError:
    match error.errno:
        case errno.ENOENT:
            return MissingError(f"{path} does not exist")
        case errno.ELOOP:
            return JailError(f"{path} became a link while it was opened")
        case errno.ENOTDIR:
            return JailError(f"{path}: what it names as a folder is none")
        case errno.EISDIR:
            return JailError(f"{path} is a folder")
        case _:
            return JailError(f"{path}: {error.strerror}")


def _read(descriptor: int, most: int) -> bytes:
    pieces = []
    while most > 0 and (piece := os.read(descriptor, min(most, 1 << 20))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _walk(folder: int, path: str, depth: int = 0) -> Iterator[str]:
    """Closes `folder`. Folders more than 100 deep are left out."""
    try:
        entries = sorted(os.listdir(folder))
        for name in entries:
            inner_path = f"{path}/{name}" if path else name
            try:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    yield inner_path
                elif stat.S_ISDIR(mode) and depth < _MOST_DEPTH:
                    yield from _walk(os.open(name, _FOLDER, dir_fd=folder), inner_path, depth + 1)
            except OSError:
                continue  # gone, or not ours to read
    finally:
        os.close(folder)
