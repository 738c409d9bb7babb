"""flash-linear-attention hands chunk_kda to this package, unasked: with the real thing, where it is installed."""

import inspect
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flash_kda

from oracle import BF16, FP32, OUT_BAR, STATE_BAR, random_inputs, recurrence, relative_rms

pytestmark = pytest.mark.gpu

# From 0.5.1 until the fix in 0.6.0 fla's dispatcher never looked at its backends.
NEVER_DISPATCHES = ("0.5.1", "0.5.2")


@pytest.fixture
def fla_chunk_kda(cuda, monkeypatch):
    fla = pytest.importorskip("fla", reason="needs flash-linear-attention (pip install flash-linear-attention)")
    if fla.__version__ in NEVER_DISPATCHES:
        pytest.skip(f"fla {fla.__version__} never hands a call to any backend")
    from fla.ops.kda import chunk_kda
    from triton.runtime.autotuner import Autotuner

    # Its kernels' speed does not matter here, and trying all their configurations takes minutes: the first one each.
    prune = Autotuner.prune_configs
    monkeypatch.setattr(Autotuner, "prune_configs", lambda *args: prune(*args)[:1])
    return chunk_kda


class Operators(TorchDispatchMode):
    """Names of the operators that ran."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    @property
    def ours(self) -> int:
        return self.names.count("flash_kda::forward")


def call(chunk_kda, x, **changes):
    """chunk_kda with the flags under which fla chooses FlashKDA; (result, how often our operator ran)."""
    v_first = (
        "state_v_first" if "state_v_first" in inspect.signature(chunk_kda).parameters else "transpose_state_layout"
    )
    options = dict(
        A_log=x.A_log, dt_bias=x.dt_bias.flatten(), cu_seqlens=x.cu_seqlens, output_final_state=True,
        initial_state=None if x.initial_state is None else x.initial_state.transpose(-1, -2).contiguous(),
        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True,
        lower_bound=-5.0,
    )  # fmt: skip
    options |= {v_first: True} | changes
    with Operators() as operators:
        result = chunk_kda(*x.token_tensors, **options)
    return result, operators.ours


def fla_inputs(chunk_kda, x):
    """x for fla's own kernels: those of 0.5.0 ignore use_beta_sigmoid_in_kernel."""
    if "use_beta_sigmoid_in_kernel" in inspect.signature(chunk_kda).parameters:
        return x
    return replace(x, beta=x.beta.float().sigmoid())


PROBLEMS = {
    "dense": dict(B=2, T=200),
    "dense with states": dict(B=2, T=200, initial_state=True),
    "packed with states": dict(T=300, cu_seqlens=[0, 17, 160, 300], initial_state=True),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_fla_computes_with_this_package(problem, mode, fla_chunk_kda, monkeypatch):
    inputs = random_inputs(H=4, HV=4, **PROBLEMS[problem])
    expected = recurrence(inputs, gate="bounded", l2norm=True, beta_form="sigmoid")
    x = inputs.to("cuda")
    with mode():
        (o, state), calls = call(fla_chunk_kda, x)
        assert calls == 1, "fla did not choose this package"
        monkeypatch.setenv("FLA_FLASH_KDA", "0")
        (fla_o, fla_state), calls = call(fla_chunk_kda, fla_inputs(fla_chunk_kda, x))
        assert calls == 0
        (direct_o, direct_state), calls = call(flash_kda.chunk_kda, x)
        assert calls == 1
    assert torch.equal(direct_o, o) and torch.equal(direct_state, state)

    pairs = (
        ("o", o, fla_o, expected.o, OUT_BAR["cuda"][BF16]),
        ("state", state, fla_state, expected.final_state.mT, STATE_BAR["cuda"][FP32]),
    )
    for name, got, fla, reference, bar in pairs:
        error, fla_error = relative_rms(got, reference), relative_rms(fla, reference)
        difference = relative_rms(got, fla)
        print(f"{name}: error {error:.2e}, fla's {fla_error:.2e}, between them {difference:.2e}")
        assert error <= bar
        assert fla_error <= 1e-2, "the comparison means nothing"
        assert error <= 1.05 * fla_error
        assert difference <= bar + fla_error


@pytest.mark.parametrize("changes", [dict(safe_gate=False), dict(use_beta_sigmoid_in_kernel=False)])
def test_fla_keeps_what_flashkda_never_computed(changes, fla_chunk_kda):
    """The spy sees the other case too."""
    x = random_inputs(T=64, H=4, HV=4).to("cuda")
    with torch.inference_mode():
        _, calls = call(fla_chunk_kda, x, **changes)
    assert calls == 0


def test_fla_keeps_calls_that_record_gradients(fla_chunk_kda):
    x = random_inputs(T=64, H=4, HV=4).to("cuda")
    _, calls = call(fla_chunk_kda, x)
    assert calls == 0
