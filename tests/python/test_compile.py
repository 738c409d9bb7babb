"""The operators under torch.compile and torch.library.opcheck."""

import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

import flash_kda

from oracle import BF16, random_inputs

SCALE = 128**-0.5


def compiler_reason() -> str | None:
    """Why Inductor cannot compile here; None if it can. (Triton, for the GPU, builds its launchers in C, too.)"""
    if not shutil.which("g++") and not shutil.which("clang++"):
        return "Inductor needs a C++ compiler"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Inductor needs Python.h (python3-dev)"
    return None


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def compiled(request):
    """torch.compile(fullgraph=True) with one of its backends."""
    if request.param == "inductor" and (reason := compiler_reason()):
        pytest.skip(reason)
    torch.compiler.reset()
    return lambda function: torch.compile(function, fullgraph=True, backend=request.param)


def test_fwd(compiled, device):
    x = random_inputs(T=40, cu_seqlens=[0, 17, 40], initial_state=True).to(device)
    initial = x.initial_state.mT.contiguous()

    def function(q, k, v, g, beta, out, final_state):
        flash_kda.fwd(q * 2, k, v, g, beta, SCALE, out, x.A_log, x.dt_bias, -5.0, initial, final_state, x.cu_seqlens)
        return out + 1

    outs, finals = [torch.empty_like(x.v) for _ in range(2)], [torch.empty_like(initial) for _ in range(2)]
    expected = function(*x.token_tensors, outs[0], finals[0])
    got = compiled(function)(*x.token_tensors, outs[1], finals[1])
    assert torch.equal(got, expected)
    assert torch.equal(outs[1], outs[0])
    assert torch.equal(finals[1], finals[0])


def test_fwd_in_place_on_a_pool(compiled, device):
    x = random_inputs(B=2, T=20).to(device)
    indices = torch.tensor([3, 1], device=device)

    def function(q, k, v, g, beta, out, pool):
        flash_kda.fwd(q, k, v, g, beta, SCALE, out, x.A_log, x.dt_bias, -5.0, pool, pool, state_indices=indices)
        return pool.sum()

    pools = [torch.randn(5, 4, 128, 128, generator=torch.Generator().manual_seed(1)).to(device) for _ in range(2)]
    outs = [torch.empty_like(x.v) for _ in range(2)]
    expected = function(*x.token_tensors, outs[0], pools[0])
    got = compiled(function)(*x.token_tensors, outs[1], pools[1])
    assert torch.allclose(got, expected)
    assert torch.equal(outs[1], outs[0])
    assert torch.equal(pools[1], pools[0])


@pytest.mark.parametrize("function", [flash_kda.chunk_kda, flash_kda.fused_recurrent_kda])
def test_functions_with_fla_names(compiled, function, device):
    x = random_inputs(B=2, T=33, initial_state=True).to(device)

    def model(q, k, v, g, beta, state):
        o, final_state = function(
            q, k, v * 0.5, g, beta, A_log=x.A_log, dt_bias=x.dt_bias, initial_state=state, output_final_state=True,
            use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        )  # fmt: skip
        return o.relu(), final_state

    expected = model(*x.token_tensors, x.initial_state)
    got = compiled(model)(*x.token_tensors, x.initial_state)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_chunk_kda_with_every_output(compiled, device):
    x = random_inputs(T=100).to(device)

    def model(q, k, v, g, beta):
        return flash_kda.chunk_kda(
            q, k, v, -g.abs(), beta.clamp(0, 1), output_final_state=True, return_intermediate_states=True,
            use_qk_l2norm_in_kernel=True, chunk_size=32, state_v_first=True,
        )  # fmt: skip

    expected, got = model(*x.token_tensors), compiled(model)(*x.token_tensors)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_another_length_does_not_need_the_first(compiled, device):
    """A dynamic token dimension."""

    def model(q, k, v, g, beta):
        return flash_kda.chunk_kda(q, k, v, -g.abs(), beta.clamp(0, 1), use_qk_l2norm_in_kernel=True)[0]

    function = compiled(model)
    for T in (20, 33, 48):
        x = random_inputs(T=T).to(device)
        for tensor in x.token_tensors:
            torch._dynamo.mark_dynamic(tensor, 1)
        assert torch.equal(function(*x.token_tensors), model(*x.token_tensors))


def test_gradients_are_refused_in_a_graph_too():
    x = random_inputs(T=8)
    function = torch.compile(flash_kda.chunk_kda, fullgraph=True, backend="eager")
    x.k.requires_grad_()
    with pytest.raises(Exception, match="k: requires grad"):
        function(*x.token_tensors)


def forward_arguments(case: str, device: str):
    """Arguments of torch.ops.flash_kda.forward."""
    x = random_inputs(B=1 if case == "packed" else 2, T=24, cu_seqlens=[0, 9, 24] if case == "packed" else None)
    states = torch.zeros(2, 4, 128, 128)
    given = dict(
        A_log=x.A_log, dt_bias=x.dt_bias, cu_seqlens=x.cu_seqlens, initial_state=None, state_indices=None,
        checkpoint_offsets=None, out=torch.empty_like(x.v), final_state=None, checkpoints=None,
        intermediate_states=None, workspace=None, state_in_place=False, scale=SCALE, gate=0, lower_bound=-5.0,
        qk_l2norm=True, beta_activation=0, state_layout=0, intermediate_every=16, batch_invariant=False,
        sequence_split=0,
    )  # fmt: skip
    given |= {
        "plain": {},
        "states": dict(initial_state=states, final_state=states.clone()),
        "packed": dict(initial_state=states, final_state=states.to(BF16)),
        "pool": dict(final_state=torch.zeros(5, 4, 128, 128), state_in_place=True, state_indices=torch.tensor([4, 0])),
        "checkpoints": dict(
            checkpoints=torch.zeros(2, 1, 4, 128, 128), checkpoint_offsets=torch.tensor([[16], [-1]]),
            intermediate_states=torch.zeros(2, 2, 4, 128, 128, dtype=BF16),
        ),
        "workspace": dict(workspace=torch.zeros(1 << 22, dtype=torch.uint8)),
    }[case]  # fmt: skip
    arguments = (*x.token_tensors, *given.values())
    return tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments)


@pytest.mark.parametrize("case", ["plain", "states", "packed", "pool", "checkpoints", "workspace"])
def test_opcheck_of_forward(case, device):
    torch.library.opcheck(torch.ops.flash_kda.forward.default, forward_arguments(case, device))


def test_schema_says_what_is_written():
    arguments = torch.ops.flash_kda.forward.default._schema.arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["out", "final_state", "checkpoints", "intermediate_states", "workspace"]
