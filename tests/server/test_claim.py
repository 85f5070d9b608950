"""One process at a time may serve a build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from trtkit.errors import InputError, ServerError
from trtkit.server.claim import Claim

HOLDER = """
import sys, pathlib, trtkit.server.claim as claim
held = claim.Claim(pathlib.Path(sys.argv[1])); held.take(); print("held", flush=True); sys.stdin.read()
"""


def test_a_second_claim_is_refused_until_the_first_is_given_back(tmp_path: Path) -> None:
    first, second = Claim(tmp_path / "launch"), Claim(tmp_path / "launch")
    first.take()
    with pytest.raises(InputError, match=rf"SERVER-RUNNING: process {os.getpid()} \(.*\) serves {tmp_path}"):
        second.take()
    first.release()
    first.release()
    second.take()
    second.release()
    assert list((tmp_path / "launch").iterdir()) == []


def test_the_claim_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"SERVER-RUNNING: process {holder.pid} "):
            Claim(tmp_path).take()
        holder.kill()
    again = Claim(tmp_path)
    again.take()
    again.release()


def test_a_claim_whose_holder_has_not_said_its_name_yet_is_another_process_s(tmp_path: Path) -> None:
    first = Claim(tmp_path)
    first.take()
    (tmp_path / "claimed_by").write_text("")
    with pytest.raises(InputError, match="another process serves"):
        Claim(tmp_path).take()
    first.release()


def test_a_build_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match=r"cannot write .*/file/launch"):
        Claim(tmp_path / "file" / "launch").take()
