"""cmake/FlashkdaNvcc.cmake: which nvcc the build takes. Stand-ins that only know --version play the compilers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def stand_in(path, release):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.1"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def root(tmp_path):
    """A source tree of its own, so that .cache/cuda is not this one's."""
    (tmp_path / "cmake").mkdir()
    shutil.copy(ROOT / "cmake/FlashkdaNvcc.cmake", tmp_path / "cmake")
    return tmp_path


def find(root, **environment):
    """(path or "", what was said)"""
    kept = {name: value for name, value in os.environ.items() if name not in ("CUDACXX", "FLASHKDA_CUDA_WHEELS")}
    command = [shutil.which("cmake"), "-P", root / "cmake/FlashkdaNvcc.cmake"]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True)
    said = " ".join((done.stdout + done.stderr).split())
    return (said.removeprefix("-- ") if done.returncode == 0 else "", said)


def test_path_comes_first(root):
    nvcc = stand_in(root / "bin/nvcc", "12.4")
    stand_in(root / ".cache/cuda/bin/nvcc", "13.0")
    assert find(root, PATH=f"{root}/bin:/usr/bin:/bin")[0] == nvcc


def test_one_that_is_too_old_is_passed_over(root):
    old = stand_in(root / "bin/nvcc", "12.3")
    stand_in(root / ".cache/cuda/bin/nvcc", "13.0")
    found, _ = find(root, PATH=f"{root}/bin:/usr/bin:/bin")  # the machine's own may serve, else the one in .cache
    assert found and found != old


def test_cudacxx_is_taken_or_refused_but_not_replaced(root):
    stand_in(root / ".cache/cuda/bin/nvcc", "13.0")
    good, old = stand_in(root / "good", "13.1"), stand_in(root / "old", "11.8")
    assert find(root, CUDACXX=good)[0] == good
    for bad, why in ((old, "old is 11.8"), ("/bin/true", "/bin/true does not run"), ("/no/nvcc", "tried /no/nvcc")):
        found, said = find(root, CUDACXX=bad)
        assert not found
        assert "no nvcc of CUDA 12.4 or newer" in said and why in said


def test_wheels_alone_if_asked(root):
    bin_first = {"PATH": f"{root}/bin:/usr/bin:/bin", "FLASHKDA_CUDA_WHEELS": "1"}
    stand_in(root / "bin/nvcc", "13.0")
    assert not find(root, **bin_first)[0]
    nvcc = stand_in(root / ".cache/cuda/bin/nvcc", "13.0")
    assert find(root, **bin_first)[0] == nvcc
