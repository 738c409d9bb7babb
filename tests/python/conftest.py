"""Fixtures. torch is imported inside them, so that test_c_abi.py runs where there is none."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def _reason_without_cuda() -> str | None:
    """Why tests on CUDA tensors cannot run here; None if they can."""
    import torch

    import flash_kda

    if not torch.cuda.is_available():
        return "no CUDA device"
    if not any(backend.device == "cuda" and backend.available for backend in flash_kda.backends()):
        return "no CUDA backend in this build"
    return None


@pytest.fixture
def cuda() -> str:
    """The device of tests that are about GPUs; those are marked gpu."""
    if reason := _reason_without_cuda():
        pytest.skip(reason)
    return "cuda"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    """Every test that takes it runs on CPU tensors and, where there is a GPU, on CUDA tensors."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return request.param


@pytest.fixture
def data_directory() -> Path:
    return REPOSITORY / "data"


@pytest.fixture
def full_data_directory() -> Path:
    """The whole layer files, which the repository only has a slice of."""
    directory = Path(os.environ.get("FLASHKDA_DATA_DIR", REPOSITORY.parent / "shared" / "data"))
    if not (directory / "kda_bounded_layer2.safetensors").is_file():
        pytest.skip(f"no full layer files in {directory} (FLASHKDA_DATA_DIR)")
    return directory
