"""Socket files: what is left of a killed process, and one that is in use."""

import socket
from pathlib import Path

import pytest

from protocols import unix_sockets


def test_a_file_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    """Nobody answers there any more; one that is answered is somebody's."""
    path = str(tmp_path / "mqtt.sock")
    unix_sockets.listening(path, 1).close()  # as a kill does it: the file stays
    with unix_sockets.listening(path, 1) as living, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        with pytest.raises(OSError, match=r"mqtt\.sock"):
            unix_sockets.listening(path, 1)
        assert living.fileno() >= 0
    unix_sockets.remove(path)
    unix_sockets.remove(path)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A file of that name that is no socket is not ours to delete."""
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(OSError, match="notes"):
        unix_sockets.listening(str(path), 1)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("bind", ["unix:", "unix:" + "a" * 108, "unix:a\x00b"])
def test_names_that_cannot_be(bind: str) -> None:
    with pytest.raises(ValueError, match="names no socket file"):
        unix_sockets.path_of(bind)


def test_addresses_are_no_files() -> None:
    assert unix_sockets.path_of("127.0.0.1:1883") == ""
    assert unix_sockets.path_of("unix:run/mqtt.sock") == "run/mqtt.sock"
