"""Files that survive a crash: the old content or the new, never a mixture.

Rename replaces a name atomically, but promises nothing about the power: unless a file and its folder are flushed first,
a power cut can leave the new name on a file of zeros. Every writer here keeps one order: write a temporary sibling,
fsync it, rename it, fsync the folder (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014).
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

try:
    import fcntl
except ImportError:  # Windows has no fcntl: no folder lock and no F_FULLFSYNC there
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp-"
StrPath: TypeAlias = str | os.PathLike[str]
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Write every byte of `data`: ``os.write`` may take fewer than it is given."""
    view = memoryview(data)
    while len(view):
        written = os.write(fd, view)
        if written == 0:
            raise OSError(errno.ENOSPC, "the device took no more bytes")
        view = view[written:]


def fsync(fd: int) -> None:
    """Flush a file to the device. On macOS fsync stops at the drive's cache, F_FULLFSYNC does not."""
    if fcntl is not None and hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def fsync_directory(folder: Path) -> None:
    """Flush the names in `folder`; nothing on systems that cannot open or flush a directory."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def make_directories(folder: Path) -> None:
    """Create `folder` and its missing parents, and flush the name of each one created."""
    for path in [*reversed(folder.parents), folder]:
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            fsync_directory(path.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", str(folder))


def write_new_file(path: Path, chunks: Iterable[memoryview | bytes]) -> tuple[int, str]:
    """Write `chunks` to a file that does not exist yet and flush it.

    Returns:
        its size in bytes and its sha256 (hexadecimal).

    Raises:
        OSError: naming `path`.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        fd = os.open(path, _WRITE_FLAGS, 0o666)
        try:
            for chunk in chunks:
                write_all(fd, chunk)
                digest.update(chunk)
                size += len(chunk)
            fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.filename is None:  # errors of write, fsync and close do not know which file it was
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return size, digest.hexdigest()


def temporary_sibling(path: Path) -> Path:
    """A free name in `path`'s folder; `remove_orphans` finds it again after a crash."""
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The name of a file to write and flush, which takes the place of ``path`` at the end, but not after an error."""
    temporary = temporary_sibling(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_directory(path.parent)


def replace_file(path: Path, chunks: Iterable[memoryview | bytes]) -> tuple[int, str]:
    """Replace the content of `path` atomically and durably; size and sha256 as `write_new_file`."""
    with folder_lock(path.parent) as locked:
        return replace_locked(path, chunks, locked)


def replace_locked(path: Path, chunks: Iterable[memoryview | bytes], locked: bool) -> tuple[int, str]:
    """`replace_file`, by the holder of the folder's lock, where its file system has one."""
    if locked:
        remove_orphans(path.parent, f"{TEMPORARY}{path.name}-")
    with replacing(path) as temporary:
        return write_new_file(temporary, chunks)


def remove_orphans(folder: Path, prefix: str) -> None:
    """Remove what a dead writer left. Call it under the folder's lock: then no living writer owns such a name."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(prefix):
                path = folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(path)


_held: dict[tuple[int, int], int] = {}  # of files that this process has locked: device and number, and the descriptor


def _take(fd: int) -> bool | None:
    """Whether the exclusive lock of an open file was free, and is taken now; None if its file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def other_holder(fd: int) -> str:
    """Take the exclusive advisory lock of an open file; if another process has it, that process, in words, else "".

    The kernel frees the lock when the process dies; ``release`` before.
    """
    if fcntl is None:
        return ""
    info = os.fstat(fd)
    taken = _take(fd)
    if taken is False and (info.st_dev, info.st_ino) not in _held:
        found = "another process"
        with contextlib.suppress(OSError):
            locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            pid = next((w[4] for w in locks if w[1] == "FLOCK" and w[5].endswith(f":{info.st_ino}")), None)
            found = found if pid is None else f"process {pid}"
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            found += f" ({''.join(c if c.isprintable() else '?' for c in command[:100])})"
        return found
    if taken:
        _held[info.st_dev, info.st_ino] = fd
    return ""  # also of a file system without such locks, and where this process has it


def release(fd: int) -> None:
    """Give the lock of an open file back: closing is not enough, because a process forked meanwhile shares it."""
    for place in [place for place, holder in [*_held.items()] if holder == fd]:
        del _held[place]
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def folder_lock(folder: Path, timeout: float = 60.0) -> Iterator[bool]:
    """Hold an exclusive advisory lock on `folder`; the kernel releases it when the process dies.

    Yields True if locked, False where the file system has no such lock (some network file systems, Windows).

    Raises:
        TimeoutError: another process held it for `timeout` seconds.
    """
    if fcntl is None:
        yield False
        return
    fd = os.open(folder, os.O_RDONLY)
    locked: bool | None = None
    try:
        deadline = time.monotonic() + timeout
        while (locked := _take(fd)) is False:
            if time.monotonic() > deadline:
                busy = f"another process has been writing here for {timeout:g} s"
                raise TimeoutError(errno.ETIMEDOUT, busy, str(folder))
            time.sleep(0.02)
        yield bool(locked)
    finally:
        if locked:
            release(fd)
        os.close(fd)
