"""Nobody else may talk to a server, and what is no request starts nothing."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Home

from lockstep.extras.warm import client

ASKS = """
import json, os, socket, sys
os.setresuid(*[int(sys.argv[3])] * 3)  # which this interpreter may not be readable for
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(30)
connection.connect(sys.argv[1])
request = {"arguments": ["script.py"], "cwd": sys.argv[2], "environment": {}}
try:
    connection.recv(16)
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    print(connection.recv(16))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to ask as another user")
def test_another_user_is_not_served_even_where_the_folder_lets_them_in(home: Home) -> None:
    (path,) = home.sockets
    asks = [sys.executable, "-I", "-S", "-c", ASKS, str(path), str(home.folder)]
    (home.folder / "script.py").write_text("open('begun', 'w')")
    folders = [home.folder, home.runtime, path.parent]
    try:
        for folder in folders:
            folder.chmod(0o755)
        path.chmod(0o777)
        said = {uid: subprocess.run([*asks, uid], capture_output=True, text=True, timeout=60).stdout for uid in ("0", "65534")}
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert said["0"] == "b'ready'\n"
    assert said["65534"] in ("b''\n", "BrokenPipeError\n", "ConnectionResetError\n")
    assert not (home.folder / "begun").exists()  # nobody has said that it is to begin


REQUEST = {"arguments": ["script.py"], "cwd": "/", "environment": {"A": "b"}}
WRONG = {
    "no JSON": b"\x80\x04K\x01.",
    "another shape": json.dumps([REQUEST]).encode(),
    "no arguments": json.dumps(REQUEST | {"arguments": []}).encode(),
    "a number": json.dumps(REQUEST | {"environment": {"A": 1}}).encode(),
    "less": json.dumps({"arguments": ["script.py"]}).encode(),
}


def answer(home: Home, content: bytes, descriptors: list[int]) -> bytes:
    (path,) = home.sockets
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        assert connection.recv(16) == client.HERE
        socket.send_fds(connection, [content], descriptors)
        return connection.recv(16)


def test_what_is_no_request_starts_nothing_and_harms_nothing(home: Home) -> None:
    good = json.dumps(REQUEST | {"cwd": str(home.folder)}).encode()  # beside which nobody leaves modules
    for content in WRONG.values():
        assert answer(home, content, [0, 1, 2]) == b""
    assert answer(home, good, [0, 1]) == b""
    assert answer(home, good, [0, 1, 2]) == client.READY


def test_only_a_directory_of_this_user_alone_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert client.folder() is None
    (own := tmp_path / "own").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert client.folder() == own / "lockstep"
    assert (own / "lockstep").stat().st_mode & 0o777 == 0o700
    (own / "lockstep").chmod(0o750)
    assert client.folder() is None
    (own / "lockstep").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (own / "lockstep").symlink_to(tmp_path / "elsewhere")
    assert client.folder() is None
    (own / "lockstep").unlink()
    own.chmod(0o770)
    assert client.folder() is None
    own.chmod(0o700)
    if os.getuid() == 0:
        os.chown(own, 65534, -1)
        assert client.folder() is None
    monkeypatch.setenv("XDG_RUNTIME_DIR", "own")
    monkeypatch.chdir(tmp_path)
    assert client.folder() is None
