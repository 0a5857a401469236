"""Local files and directories as one tar stream: read as safely as the SDK reads them, little in memory.

Sources must lie below the working directory or a granted path, are opened relative to descriptors, and no
link is followed: these are the SDK's own primitives. Unlike the SDK, modes and times of files are kept. Everything
here blocks, so the stream is read in a thread (``stream.content`` does).
"""

import hashlib
import io
import os
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from agents.sandbox.entries import LocalDir, LocalFile
from agents.sandbox.errors import LocalDirReadError, LocalFileReadError
from agents.sandbox.materialization import MaterializedFile
from agents.sandbox.workspace_paths import SandboxPathGrant

from .manifest_mapping import Upload

_PIECE = 256 << 10
#: What others may do with files that are carried over; set-id bits stay behind.
_MODE_MASK = 0o777


class UploadStream(io.RawIOBase):
    """A tar stream of uploads, made while it is read.

    Attributes:
        files: What has been read of local sources so far, with checksums.
    """

    def __init__(
        self,
        uploads: Sequence[Upload],
        *,
        root: Path,
        base_dir: Path,
        grants: tuple[SandboxPathGrant, ...] = (),
    ) -> None:
        super().__init__()
        self.files: list[MaterializedFile] = []
        self._root = root
        self._base_dir = base_dir
        self._grants = grants
        self._made: set[str] = set()
        self._pieces = self._members(uploads)
        self._rest = b""

    def readable(self) -> bool:
        """See :class:`io.RawIOBase`."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; ``b""`` at the end of the archive."""
        limit = size if size >= 0 else 1 << 62
        parts, length = [self._rest], len(self._rest)
        while length < limit:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            length += len(piece)
        data = b"".join(parts)
        self._rest = data[limit:]
        return data[:limit]

    def close(self) -> None:
        """See :class:`io.IOBase`."""
        self._pieces.close()  # type: ignore[attr-defined]
        super().close()

    # -- members

    def _members(self, uploads: Sequence[Upload]) -> Iterator[bytes]:
        for upload in uploads:
            source = upload.source
            if isinstance(source, LocalFile):
                yield from self._local_file(upload, source)
            elif isinstance(source, LocalDir):
                yield from self._local_dir(upload, source)
            elif upload.content is not None:
                yield _header(upload.path, len(upload.content), upload.mode)
                yield from _padded(upload.content)
            else:
                yield from self._directory(upload.path, upload.mode)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _directory(self, path: str, mode: int) -> Iterator[bytes]:
        if path and path not in self._made:
            self._made.add(path)
            yield _header(path, 0, mode, tarfile.DIRTYPE)

    def _local_file(self, upload: Upload, source: LocalFile) -> Iterator[bytes]:
        descriptor, described = _open_local_file(source, self._base_dir, self._grants)
        yield from self._file(descriptor, described, upload.path, upload.mode)

    def _local_dir(self, upload: Upload, source: LocalDir) -> Iterator[bytes]:
        root, children = _list_local_dir(source, self._base_dir, self._grants)
        yield from self._directory(upload.path, upload.mode)
        for child in sorted(children):
            for parent in list(child.parents)[-2::-1]:
                yield from self._directory(_join(upload.path, parent.as_posix()), 0o755)
            descriptor = source._open_local_dir_file_for_copy(
                base_dir=self._base_dir, src_root=root, rel_child=child, source_grants=self._grants
            )
            yield from self._file(descriptor, root / child, _join(upload.path, child.as_posix()), None)

    def _file(self, descriptor: int, described: Path, path: str, mode: int | None) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            try:
                status = os.fstat(stream.fileno())
                kept = status.st_mode & _MODE_MASK if mode is None else mode
                yield _header(path, status.st_size, kept, mtime=status.st_mtime)
                left = status.st_size
                while left:
                    piece = stream.read(min(_PIECE, left))
                    if not piece:
                        raise LocalFileReadError(
                            src=described, context={"reason": "path_changed_during_copy"}
                        )
                    left -= len(piece)
                    digest.update(piece)
                    yield piece
            except OSError as error:
                raise LocalFileReadError(src=described, cause=error) from error
        if status.st_size % tarfile.BLOCKSIZE:
            yield bytes(-status.st_size % tarfile.BLOCKSIZE)
        self.files.append(
            MaterializedFile(path=Path(PurePosixPath(self._root) / path), sha256=digest.hexdigest())
        )


def check_sources(
    uploads: Sequence[Upload], *, base_dir: Path, grants: tuple[SandboxPathGrant, ...] = ()
) -> None:
    """Look whether all local sources are there, and may be read, before anything is made for them.

    Raises:
        LocalFileReadError: A file is missing, is a link, cannot be read or is outside of what is trusted.
        LocalDirReadError: The same of a directory, or of what is in it.
    """
    for upload in uploads:
        if isinstance(upload.source, LocalFile):
            os.close(_open_local_file(upload.source, base_dir, grants)[0])
        elif isinstance(upload.source, LocalDir):
            _list_local_dir(upload.source, base_dir, grants)


def _open_local_file(
    source: LocalFile, base_dir: Path, grants: tuple[SandboxPathGrant, ...]
) -> tuple[int, Path]:
    described = Path(os.path.abspath(base_dir / source.src))  # noqa: PTH100 - links must not be resolved
    directory = LocalDir(src=source.src.parent)
    try:
        root = directory._resolve_local_dir_src_root(base_dir, source_grants=grants)
        descriptor = directory._open_local_dir_file_for_copy(
            base_dir=base_dir, src_root=root, rel_child=Path(source.src.name), source_grants=grants
        )
    except LocalDirReadError as error:
        context = {k: v for k, v in error.context.items() if k != "src"}
        raise LocalFileReadError(src=described, context=context, cause=error.cause) from error
    except OSError as error:
        raise LocalFileReadError(src=described, cause=error) from error
    return descriptor, described


def _list_local_dir(
    source: LocalDir, base_dir: Path, grants: tuple[SandboxPathGrant, ...]
) -> tuple[Path, list[Path]]:
    root = source._resolve_local_dir_src_root(base_dir, source_grants=grants)
    try:
        return root, source._list_local_dir_files(base_dir=base_dir, src_root=root, source_grants=grants)
    except OSError as error:
        raise LocalDirReadError(src=root, cause=error) from error


def _header(
    path: str, size: int, mode: int, kind: bytes = tarfile.REGTYPE, mtime: float | None = None
) -> bytes:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.type = size, mode, kind
    member.mtime = time.time() if mtime is None else mtime
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padded(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]
    if len(content) % tarfile.BLOCKSIZE:
        yield bytes(-len(content) % tarfile.BLOCKSIZE)


def _join(parent: str, child: str) -> str:
    return f"{parent}/{child}" if parent else child
