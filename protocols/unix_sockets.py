"""Listeners on a file of this machine: ``bind: unix:/run/tidegate/mqtt.sock``."""

import contextlib
import errno
import os
import socket
import stat
from itertools import count
from typing import Final

PREFIX: Final = "unix:"

PATH_BYTES_MAX: Final = 107
"""``sun_path`` of unix(7), without its last zero."""

_peers = count(1)


def path_of(bind: str) -> str:
    """The file of such an address; empty: it is none. Raises ValueError for one that cannot be."""
    if not bind.startswith(PREFIX):
        return ""
    path = bind.removeprefix(PREFIX)
    if not path or "\x00" in path or len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise ValueError(f"'{bind}' names no socket file of 1 to {PATH_BYTES_MAX} bytes")
    return path


def listening(path: str, backlog: int) -> socket.socket:
    """
    A socket that listens at *path*; who may write to the file (umask) may connect.

    One that a killed process left behind is replaced. Raises OSError: somebody listens there.
    """
    if _is_left(path):
        os.unlink(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(path)
        made.listen(backlog)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"{error.strerror}: {path}") from error
    return made


def remove(path: str) -> None:
    """The file of a listener that is closed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def next_peer() -> str:
    """A name for a peer that has no address; of the form of one that has."""
    return f"unix:{next(_peers)}"


def _is_left(path: str) -> bool:
    """A socket file with nobody behind it."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED
