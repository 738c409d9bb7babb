"""What the package says about itself, and how it is registered with torch."""

import re
from importlib import metadata
from pathlib import Path

import torch
from conftest import REPOSITORY

import flash_kda


def test_version_stands_in_one_place():
    header = (REPOSITORY / "include/flashkda/version.h").read_text()
    version = re.search(r'FLASHKDA_VERSION_STRING "(.*)"', header)[1]
    assert flash_kda.__version__ == version
    assert metadata.version("flash-kda") == version


def test_backends():
    found = {backend.name: backend for backend in flash_kda.backends()}
    assert flash_kda.backends()[0].name != "reference"  # the oracle is never the automatic choice
    assert found["cpu"].device == "cpu"
    assert found["cpu"].available
    assert {"gate-bounded", "gate-softplus", "bf16"} < set(found["cpu"].features)
    assert found["cpu"].detail


def test_operators_are_registered():
    for name in ("forward", "workspace_size", "inspect_chunk"):
        operator = getattr(torch.ops.flash_kda, name).default
        for key in ("CPU", "CUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def test_package_is_typed_and_stands_alone():
    directory = Path(flash_kda.__file__).parent
    assert (directory / "py.typed").is_file()
    assert {path.name for path in directory.glob("lib*.so*")} >= {"libflashkda.so." + shared_object_version()}


def shared_object_version() -> str:
    return ".".join(flash_kda.__version__.split(".")[:2])


def test_public_names_are_documented():
    for name in flash_kda.__all__:
        if name != "__version__":
            assert getattr(flash_kda, name).__doc__


def test_num_threads_follows_torch():
    """The same bits with any number of torch's threads."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 70, 2, 128, generator=generator) for _ in range(3))
    g, beta = -torch.rand(2, 70, 2, 128, generator=generator), torch.rand(2, 70, 2, generator=generator)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(flash_kda.chunk_kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
