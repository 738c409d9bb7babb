"""The C interface through ctypes and NumPy alone: what a program without torch sees. Nothing here imports torch."""

import ctypes
import importlib.util
import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

FLOAT32, BFLOAT16, INT64 = 1, 2, 6
INVALID_ARGUMENT, UNSUPPORTED, WORKSPACE_TOO_SMALL = 1, 2, 3
GATE_LOG, BETA_ACTIVATED, K_FIRST = 2, 2, 1
CUDA = 1
ALIGNMENT = 256


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 5),
        ("stride", ctypes.c_int64 * 5),
    ]


ProgressCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        *((name, Tensor) for name in (
            "q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens", "initial_state", "state_indices", "out",
            "final_state", "checkpoints", "checkpoint_offsets", "intermediate_states",
        )),
        ("gate", ctypes.c_int32),
        ("lower_bound", ctypes.c_float),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in (
            "qk_l2norm", "beta_activation", "state_layout", "intermediate_every", "batch_invariant", "num_threads",
        )),
        ("backend", ctypes.c_char_p),
        ("progress", ProgressCallback),
        ("progress_user", ctypes.c_void_p),
        ("sequence_split", ctypes.c_int32),
    ]  # fmt: skip


def library_path() -> Path:
    """FLASHKDA_LIBRARY, or the one in the installed package (found without importing it)."""
    if named := os.environ.get("FLASHKDA_LIBRARY"):
        return Path(named)
    spec = importlib.util.find_spec("flash_kda")
    assert spec is not None and spec.origin is not None, "install flash_kda or set FLASHKDA_LIBRARY"
    return next(Path(spec.origin).parent.glob("libflashkda.so*"))


@pytest.fixture(scope="module")
def lib():
    library = ctypes.CDLL(str(library_path()))
    library.fkda_last_error.restype = library.fkda_status_string.restype = library.fkda_version.restype = (
        ctypes.c_char_p
    )
    return library


DTYPES = {np.dtype(np.float32): FLOAT32, np.dtype(np.uint16): BFLOAT16, np.dtype(np.int64): INT64}


def view(array: np.ndarray) -> Tensor:
    t = Tensor(data=array.ctypes.data, dtype=DTYPES[array.dtype], ndim=array.ndim)
    for d in range(array.ndim):
        t.shape[d], t.stride[d] = array.shape[d], array.strides[d] // array.itemsize
    return t


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Truncated, as 16 bits."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Case:
    """A packed problem with the log gate in [K,V] layout: three heads, two sequences."""

    T, H, D = 37, 3, 128

    def __init__(self, lib, dtype=np.float32):
        random = np.random.default_rng(0)
        shape = (1, self.T, self.H, self.D)
        q, k, v = (random.standard_normal(shape).astype(np.float32) for _ in range(3))
        if dtype == np.uint16:
            q, k, v = (to_bfloat16(x) for x in (q, k, v))
        self.q, self.k, self.v = q, k, v
        self.g = -random.random(shape, dtype=np.float32)
        self.beta = random.random(shape[:3], dtype=np.float32)
        self.cu_seqlens = np.array([0, 20, 37], np.int64)
        self.out = np.zeros(shape, q.dtype)
        self.final_state = np.full((2, self.H, self.D, self.D), np.nan, np.float32)
        self.problem = Problem()
        lib.fkda_problem_init(ctypes.byref(self.problem))
        for name in ("q", "k", "v", "g", "beta", "cu_seqlens", "out", "final_state"):
            setattr(self.problem, name, view(getattr(self, name)))
        self.problem.gate, self.problem.beta_activation = GATE_LOG, BETA_ACTIVATED
        self.problem.state_layout = K_FIRST
        self.lib = lib

    def workspace(self) -> tuple[np.ndarray, int, int]:
        """(memory, aligned address, bytes); filled with NaN."""
        size = ctypes.c_size_t()
        assert self.lib.fkda_workspace_size(ctypes.byref(self.problem), ctypes.byref(size)) == 0, self.error()
        memory = np.full(size.value + ALIGNMENT, 255, np.uint8)
        return memory, memory.ctypes.data + -memory.ctypes.data % ALIGNMENT, size.value

    def run(self) -> int:
        _memory, address, size = self.workspace()
        return self.lib.fkda_forward(ctypes.byref(self.problem), ctypes.c_void_p(address), ctypes.c_size_t(size), None)

    def error(self) -> str:
        return self.lib.fkda_last_error().decode()


def recurrence(case: Case):
    """The token recurrence in fp64, with NumPy."""
    load = from_bfloat16 if case.q.dtype == np.uint16 else np.asarray
    q, k, v = (load(x).astype(np.float64)[0] for x in (case.q, case.k, case.v))
    g, beta = case.g.astype(np.float64)[0], case.beta.astype(np.float64)[0]
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    o, finals = np.zeros_like(v), []
    for begin, end in pairwise(case.cu_seqlens):
        S = np.zeros((case.H, case.D, case.D))
        for t in range(begin, end):
            S = np.exp(g[t])[:, :, None] * S
            u = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], S))
            S = S + np.einsum("hk,hv->hkv", k[t], u)
            o[t] = np.einsum("hk,hkv->hv", q[t], S) / math.sqrt(case.D)
        finals.append(S)
    return o[None], np.stack(finals)


def relative_rms(got, want) -> float:
    return float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))


@pytest.mark.parametrize("dtype, bar", [(np.float32, 2e-5), (np.uint16, 2e-3)])
def test_forward(lib, dtype, bar):
    case = Case(lib, dtype)
    assert case.run() == 0, case.error()
    o, final_state = recurrence(case)
    got = case.out if dtype == np.float32 else from_bfloat16(case.out)
    assert relative_rms(got.astype(np.float64), o) <= bar
    assert relative_rms(case.final_state.astype(np.float64), final_state) <= 2e-5


def test_strides_are_taken_as_they_are(lib):
    plain, spread = Case(lib), Case(lib)
    wide = np.full((1, 37, 3, 200), np.nan, np.float32)
    wide[..., 30:158] = spread.v
    spread.problem.v = view(wide[..., 30:158])
    assert plain.run() == 0 and spread.run() == 0
    assert np.array_equal(plain.out, spread.out)


def test_failures_name_the_argument_and_write_nothing(lib):
    case = Case(lib)
    for change, status, says in (
        (lambda p: setattr(p.k, "ndim", 3), INVALID_ARGUMENT, "k: got shape [1,37,3]"),
        (lambda p: setattr(p.q, "dtype", INT64), INVALID_ARGUMENT, "q: got"),
        (lambda p: setattr(p.cu_seqlens, "data", 0), INVALID_ARGUMENT, "cu_seqlens: got a null pointer"),
        (lambda p: setattr(p, "struct_size", 8), INVALID_ARGUMENT, "problem: struct_size is 8"),
        (lambda p: setattr(p, "backend", b"abacus"), INVALID_ARGUMENT, "abacus"),
    ):
        bad = Problem.from_buffer_copy(case.problem)
        change(bad)
        assert lib.fkda_forward(ctypes.byref(bad), None, ctypes.c_size_t(0), None) == status
        assert says in case.error()
        assert (case.out == 0).all()
        assert np.isnan(case.final_state).all()


def test_a_device_without_a_backend(lib):
    """What CUDA tensors get from a build without CUDA."""
    case = Case(lib)
    for name in ("q", "k", "v", "g", "beta", "cu_seqlens", "out", "final_state"):
        getattr(case.problem, name).device_type = CUDA
    case.problem.backend = b"cpu"
    assert lib.fkda_validate(ctypes.byref(case.problem), None) == UNSUPPORTED
    assert "cpu computes on cpu tensors, q is on cuda" in case.error()


def test_workspace_one_byte_short(lib):
    """Case 53."""
    case = Case(lib)
    _memory, address, size = case.workspace()
    assert size > 0
    status = lib.fkda_forward(ctypes.byref(case.problem), ctypes.c_void_p(address), ctypes.c_size_t(size - 1), None)
    assert status == WORKSPACE_TOO_SMALL
    assert case.error() == f"workspace: got {size - 1} bytes, needs {size}"


def test_progress_is_reported(lib):
    case = Case(lib)
    seen = []
    case.problem.progress = ProgressCallback(lambda user, done, total: seen.append((done, total)))
    case.problem.num_threads = 1
    assert case.run() == 0
    assert seen and seen[-1][0] == seen[-1][1]
    assert all(done <= total for done, total in seen)


def test_version_and_statuses(lib):
    header = Path(__file__).resolve().parents[2] / "include/flashkda/version.h"
    assert f'"{lib.fkda_version().decode()}"' in header.read_text()
    assert lib.fkda_status_string(0) == b"ok"
    assert lib.fkda_status_string(INVALID_ARGUMENT) == b"invalid argument"
    assert lib.fkda_status_string(99) == b"unknown status"
