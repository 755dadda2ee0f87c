"""What an operator meets: keys that others can read, and a service manager that ends a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mesh_parties import Parties

from dpmesh.deploy import Folder

posix = pytest.mark.skipif(os.name != "posix", reason="modes and signals of POSIX")


@posix
@pytest.mark.parametrize("name", ["signing.pem", "noise.key", "node.db"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_folder_whose_keys_others_can_read_is_refused(
    name: str, mode: int, tmp_path: Path
) -> None:
    Folder.create(tmp_path / "north", epsilon=1.0, delta=1e-5).close()
    path = tmp_path / "north" / name
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"chmod 600 .*{name}.* got {mode:04o}"):
        Folder.open(tmp_path / "north")
    path.chmod(0o600)
    Folder.open(tmp_path / "north").close()


@posix
def test_a_router_that_a_service_manager_ends_says_that_nothing_is_lost(tmp_path: Path) -> None:
    tomli_w = pytest.importorskip("tomli_w")
    parties = Parties(tmp_path, nodes=2)
    (tmp_path / "contract.toml").write_text(tomli_w.dumps(parties.content))
    command = [sys.executable, "-m", "dpmesh", "router", "contract.toml", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        assert "listening at" in process.stdout.readline()
        assert "waiting for the signatures" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command goes on" in printed
    assert "Traceback" not in printed
