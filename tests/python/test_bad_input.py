"""Every rejection: the type of the error, the argument it names, and that nothing was written before it."""

import re

import pytest
import torch

import flash_kda

from oracle import BF16, FP32, random_inputs

nan = float("nan")


def arguments(**changes):
    """A good call of fwd with every tensor there is: packed, pooled, with checkpoints."""
    x = random_inputs(T=40, cu_seqlens=[0, 20, 40])
    good = dict(
        q=x.q, k=x.k, v=x.v, g=x.g, beta=x.beta, scale=0.1, out=torch.full_like(x.v, 7.0), A_log=x.A_log,
        dt_bias=x.dt_bias, lower_bound=-5.0, initial_state=torch.zeros(3, 4, 128, 128),
        final_state=torch.full((3, 4, 128, 128), 7.0), cu_seqlens=x.cu_seqlens, state_indices=torch.tensor([2, 0]),
        checkpoints=torch.full((2, 1, 4, 128, 128), 7.0), checkpoint_offsets=torch.tensor([[16], [0]]),
    )  # fmt: skip
    return good | changes


def test_the_good_call_is_good():
    flash_kda.fwd(**arguments())


def strided(tensor):
    """The same values with a gap between the elements of the last dimension."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def misaligned(tensor):
    """The same values one byte past where they may begin."""
    memory = bytearray(tensor.numel() * tensor.element_size() + 1)
    result = torch.frombuffer(memory, dtype=tensor.dtype, offset=1, count=tensor.numel()).view(tensor.shape)
    assert result.data_ptr() % tensor.element_size() == 1
    return result


good = arguments()
overlapping = torch.zeros(40 * 4 * 128, dtype=BF16)

# (argument that the message names, changes to the good call, what the message says)
REJECTIONS = [
    # rank
    ("q", dict(q=good["q"][0]), "needs 4 dimensions"),
    ("q", dict(q=torch.tensor(1.0).to(BF16)), "needs 4 dimensions"),
    ("k", dict(k=good["k"][0]), r"\[B,T,H,K\] = \[1,40,2,128\]"),
    ("v", dict(v=good["v"][0]), "needs 4 dimensions"),
    ("g", dict(g=good["g"].flatten(2)), r"\[B,T,HV,K\] = \[1,40,4,128\]"),
    ("beta", dict(beta=good["beta"].unsqueeze(-1)), r"\[B,T,HV\] = \[1,40,4\]"),
    ("dt_bias", dict(dt_bias=torch.zeros(1, 4, 128)), r"\[HV,K\]"),
    ("out", dict(out=torch.zeros(40, 4, 128, dtype=BF16)), r"\[B,T,HV,V\]"),
    ("initial_state", dict(initial_state=torch.zeros(4, 128, 128)), "slots,HV,V,K"),
    ("checkpoints", dict(checkpoints=torch.zeros(2, 4, 128, 128)), "5 dimensions"),
    ("A_log", dict(A_log=torch.zeros(1, 1, 1, 1, 4, 1)), "at most 5"),
    # size
    ("k", dict(k=good["k"][:, :39]), r"got shape \[1,39,2,128\], needs \[B,T,H,K\] = \[1,40,2,128\]"),
    ("k", dict(k=good["k"][..., :64].contiguous()), r"needs \[B,T,H,K\] = \[1,40,2,128\]"),
    ("v", dict(v=good["v"][:, :39]), r"\[1,40,4,128\]"),
    ("v", dict(v=good["v"][:, :, :3], g=good["g"][:, :, :3], beta=good["beta"][..., :3]), "multiple of H = 2"),
    ("g", dict(g=good["g"][:, :, :2]), r"needs \[B,T,HV,K\] = \[1,40,4,128\]"),
    ("beta", dict(beta=good["beta"][..., :2]), r"needs \[B,T,HV\] = \[1,40,4\]"),
    ("A_log", dict(A_log=torch.zeros(3)), "HV = 4 elements"),
    ("dt_bias", dict(dt_bias=torch.zeros(4)), r"HV\*K"),  # case 21
    ("out", dict(out=torch.full((1, 41, 4, 128), 7.0, dtype=BF16)), r"\[1,40,4,128\]"),
    ("final_state", dict(final_state=torch.full((3, 2, 128, 128), 7.0)), "HV"),
    ("initial_state", dict(state_indices=None), r"needs \[N,HV,V,K\] = \[2,4,128,128\]"),
    ("state_indices", dict(state_indices=torch.tensor([0])), r"\[N\] = \[2\]"),
    ("checkpoint_offsets", dict(checkpoint_offsets=torch.tensor([[16, 0], [0, 0]])), r"\[2,1\]"),
    # dtype
    ("q", dict(q=good["q"].double()), "float32|fp32"),
    ("k", dict(k=good["k"].float()), "bf16|bfloat16"),
    ("v", dict(v=good["v"].half()), "bf16|bfloat16"),
    ("g", dict(g=good["g"].double()), "needs"),
    ("beta", dict(beta=good["beta"].to(torch.int8)), "got dtype Char"),
    ("A_log", dict(A_log=torch.zeros(4, dtype=BF16)), "float32|fp32"),
    ("dt_bias", dict(dt_bias=torch.zeros(4, 128, dtype=BF16)), "float32|fp32"),
    ("out", dict(out=torch.zeros(1, 40, 4, 128, dtype=torch.int32)), "needs"),
    ("initial_state", dict(initial_state=torch.zeros(3, 4, 128, 128, dtype=torch.float16)), "needs"),
    ("final_state", dict(final_state=torch.full((3, 4, 128, 128), 7.0, dtype=torch.float16)), "needs"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([0.0, 20.0, 40.0])), "int32"),
    ("state_indices", dict(state_indices=torch.tensor([2, 0], dtype=torch.int16)), "int"),
    ("checkpoint_offsets", dict(checkpoint_offsets=torch.tensor([[16.0], [0.0]])), "int32"),
    # memory
    ("q", dict(q=strided(good["q"])), "dense"),
    ("k", dict(k=strided(good["k"])), "dense"),
    ("v", dict(v=strided(good["v"])), "dense"),
    ("g", dict(g=strided(good["g"])), "dense"),
    ("beta", dict(beta=strided(good["beta"])), "dense"),
    ("out", dict(out=strided(torch.full_like(good["v"], 7.0))), "dense"),
    ("A_log", dict(A_log=strided(good["A_log"])), "dense"),
    ("dt_bias", dict(dt_bias=strided(good["dt_bias"])), "dense"),
    ("cu_seqlens", dict(cu_seqlens=strided(good["cu_seqlens"])), "dense"),  # case 19
    ("initial_state", dict(initial_state=torch.zeros(3, 4, 128, 256)[..., :128]), "dense"),
    ("final_state", dict(final_state=torch.full((3, 4, 128, 256), 7.0)[..., :128]), "dense"),
    ("q", dict(q=misaligned(good["q"])), "alignment|multiple of 2"),
    ("initial_state", dict(initial_state=misaligned(good["initial_state"])), "alignment|multiple of 4"),
    ("out", dict(out=overlapping.as_strided((1, 40, 4, 128), (0, 128, 128, 1))), "overlap"),
    ("out", dict(v=good["v"], out=good["v"]), "overlaps v"),
    # values
    ("lower_bound", dict(lower_bound=0.0), r"\[-5, 0\)"),
    ("lower_bound", dict(lower_bound=-5.01), r"\[-5, 0\)"),
    ("lower_bound", dict(lower_bound=nan), r"\[-5, 0\)"),
    ("lower_bound", dict(lower_bound=1), r"\[-5, 0\)"),
    ("scale", dict(scale=float("inf")), "finite"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([1, 20, 40])), "starts at 1, needs 0"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([0, 20, 39])), "ends at 39, needs T = 40"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([0, 20, 41])), "ends at 41, needs T = 40"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([0, 41, 40])), "ascending"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([[0, 20, 40]])), r"\[N\+1\]"),
    ("cu_seqlens", dict(cu_seqlens=torch.tensor([], dtype=torch.int64)), r"\[N\+1\]"),
    ("state_indices", dict(state_indices=torch.tensor([3, 0])), "3 slots"),
    ("state_indices", dict(state_indices=torch.tensor([1, 1])), "more than once"),
    ("checkpoint_offsets", dict(checkpoint_offsets=torch.tensor([[17], [0]])), "multiple of 16"),  # case 61
    ("checkpoint_offsets", dict(checkpoint_offsets=torch.tensor([[32], [0]])), r"0\.\.20"),
    ("checkpoint_offsets", dict(checkpoint_offsets=None), "absent"),
    ("checkpoints", dict(checkpoints=None), "absent"),
    ("workspace", dict(workspace=torch.empty(1, dtype=torch.uint8)), "bytes"),  # case 53
    ("workspace", dict(workspace=torch.empty(1 << 24, dtype=torch.uint8)[::2]), "gaps"),
]


@pytest.mark.parametrize("name, changes, says", REJECTIONS, ids=[f"{r[0]}-{i}" for i, r in enumerate(REJECTIONS)])
def test_fwd_refuses(name, changes, says):
    call = arguments(**changes)
    before = {n: call[n].clone() for n in ("out", "final_state", "checkpoints") if call[n] is not None}
    with pytest.raises(ValueError) as caught:
        flash_kda.fwd(**call)
    message = str(caught.value)
    assert message.startswith(f"{name}: "), message
    assert re.search(says, message), message
    assert "\n" not in message  # no C++ stack trace
    assert all(torch.equal(call[n], value) for n, value in before.items())


def test_states_that_overlap_without_being_one():
    pool = torch.zeros(4, 4, 128, 128)
    with pytest.raises(ValueError, match="final_state: overlaps initial_state"):
        flash_kda.fwd(**arguments(initial_state=pool[:3], final_state=pool[1:]))
    assert (pool == 0).all()


def test_batch_with_cu_seqlens():
    x = random_inputs(B=2, T=20)
    with pytest.raises(ValueError, match="needs B = 1"):
        flash_kda.chunk_kda(*x.token_tensors, cu_seqlens=torch.tensor([0, 20]))


@pytest.mark.parametrize("name", ["q", "k", "A_log", "initial_state", "final_state", "cu_seqlens", "workspace"])
def test_mixed_devices(name):
    call = arguments(workspace=torch.empty(1 << 22, dtype=torch.uint8))
    call[name] = call[name].to("meta")
    with pytest.raises(ValueError, match=rf"{'k' if name == 'q' else name}: is on (meta|cpu), needs (cpu|meta)"):
        flash_kda.fwd(**call)
    assert (call["out"] == 7.0).all()


@pytest.mark.parametrize("K, V", [(100, 128), (128, 20), (520, 128)])
def test_unsupported_widths_say_what_is_supported(K, V):
    x = random_inputs(T=4, K=K, V=V)
    with pytest.raises(NotImplementedError, match=r"K,V=8n<=512"):
        flash_kda.chunk_kda(*x.token_tensors)


def test_backend_forced_by_the_environment(monkeypatch):
    x = random_inputs(T=4, K=100, V=20)
    monkeypatch.setenv("FLASH_KDA_BACKEND", "reference")
    o, _ = flash_kda.chunk_kda(*x.token_tensors, use_qk_l2norm_in_kernel=True)
    assert o.shape == (1, 4, 4, 20)
    monkeypatch.setenv("FLASH_KDA_BACKEND", "no-such-backend")
    with pytest.raises(ValueError, match="no-such-backend.*cpu"):
        flash_kda.chunk_kda(*x.token_tensors)


# ------------------------------------------------------------------------------------- what the core cannot see


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state", "out"])
def test_gradients_are_refused(name):
    call = arguments()
    call[name] = call[name].detach().requires_grad_()
    with pytest.raises(NotImplementedError, match=f"^{name}: requires grad.*no_grad"):
        flash_kda.fwd(**call)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            flash_kda.fwd(**call)


@pytest.mark.parametrize("function", [flash_kda.chunk_kda, flash_kda.fused_recurrent_kda])
def test_gradients_are_refused_by_fla_names(function):
    x = random_inputs(T=4)
    with pytest.raises(NotImplementedError, match="^v: requires grad"):
        function(x.q, x.k, x.v.requires_grad_(), x.g, x.beta)


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(q=None), "q: got None, needs a torch.Tensor"),
        (dict(q=[1.0]), "q: got list, needs a torch.Tensor"),
        (dict(out=None), "out: got None"),
        (dict(cu_seqlens=[0, 20, 40]), "cu_seqlens: got list"),
        (dict(scale="1"), "scale: got str, needs a number"),
        (dict(scale=None), "scale: got NoneType, needs a number"),
        (dict(lower_bound=None), "lower_bound: got NoneType, needs a number"),
        (dict(nonsense=1), "nonsense"),
    ],
)
def test_types(changes, says):
    with pytest.raises(TypeError, match=says):
        flash_kda.fwd(**arguments(**changes))


@pytest.mark.parametrize("function", [flash_kda.chunk_kda, flash_kda.fused_recurrent_kda, flash_kda.inspect_chunk])
def test_unknown_arguments_are_named(function):
    x = random_inputs(T=4)
    with pytest.raises(TypeError, match="beta_is_raw"):
        function(*x.token_tensors, beta_is_raw=True)


@pytest.mark.parametrize(
    "options, error, says",
    [
        (dict(allow_neg_eigval=True), ValueError, "allow_neg_eigval: .*use_beta_sigmoid_in_kernel"),
        (dict(use_gate_in_kernel=True), ValueError, "A_log: "),
        (dict(use_gate_in_kernel=True, safe_gate=True, A_log=torch.zeros(4)), ValueError, "lower_bound: "),
        (dict(use_gate_in_kernel=True, lower_bound=-6.0), ValueError, r"lower_bound: .*\[-5, 0\)"),
        (dict(chunk_size=24), ValueError, "chunk_size: got 24, needs a positive multiple of 16"),
        (dict(chunk_size=0), ValueError, "chunk_size: got 0"),
        (dict(cp_context=object()), NotImplementedError, "cp_context: "),
        (dict(state_indices=torch.tensor([0])), ValueError, "state_indices: needs initial_state"),
        (
            dict(initial_state=torch.zeros(2, 4, 128, 128)),
            ValueError,
            r"initial_state: .*\[N,HV,K,V\] = \[1,4,128,128\]",
        ),
        (dict(cu_seqlens_cpu=torch.tensor([0, 40])), ValueError, "cu_seqlens_cpu: given without cu_seqlens"),
    ],
)
def test_chunk_kda_refuses(options, error, says):
    x = random_inputs(T=40)
    with pytest.raises(error, match=says):
        flash_kda.chunk_kda(*x.token_tensors, **options)


@pytest.mark.parametrize("name", ["q", "v"])
def test_rank_is_checked_before_results_are_allocated(name):
    x = random_inputs(T=40)
    setattr(x, name, getattr(x, name)[0])
    with pytest.raises(ValueError, match=f"^{name}: got shape .*needs 4 dimensions"):
        flash_kda.chunk_kda(*x.token_tensors, output_final_state=True)


@pytest.mark.parametrize(
    "values, error", [([0, 20, 39], ValueError), ([0, 40], ValueError), ([1, 20, 40], ValueError), (None, TypeError)]
)
def test_cu_seqlens_cpu_is_checked(values, error):
    x = random_inputs(T=40, cu_seqlens=[0, 20, 40])
    copy = torch.tensor(values) if values else [0, 20, 40]
    with pytest.raises(error, match="^cu_seqlens_cpu: "):
        flash_kda.chunk_kda(*x.token_tensors, cu_seqlens=x.cu_seqlens, cu_seqlens_cpu=copy)


def test_bad_lengths_are_refused_before_h_is_allocated():
    x = random_inputs(T=40, cu_seqlens=[0, 20, 40])
    for bad in ([0, 1 << 40, 40], [0, -(1 << 40), 40], [0, 20, 1 << 40]):
        with pytest.raises(ValueError, match="^cu_seqlens: "):
            flash_kda.chunk_kda(*x.token_tensors, cu_seqlens=torch.tensor(bad), return_intermediate_states=True)


def test_inside_the_compiled_operator_the_message_is_the_same():
    x = random_inputs(T=4)
    operator = torch.ops.flash_kda.forward.default
    with pytest.raises(RuntimeError, match=r"^flash_kda: invalid argument: k: got shape \[1,3,2,128\]"):
        operator(
            x.q, x.k[:, :3], x.v, x.g, x.beta, None, None, None, None, None, None, torch.empty_like(x.v), None, None,
            None, None, False, 1.0, 0, -5.0, True, 0, 0, 64, False, 0,
        )  # fmt: skip


def test_tensors_of_a_device_without_a_backend():
    """What a CUDA tensor gets from a build without CUDA; meta tensors stand in where there is no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if any(backend.device == "cuda" for backend in flash_kda.backends()):
        pytest.skip("this build has a CUDA backend")
    x = random_inputs(T=4, dtype=FP32).to("cuda")
    with pytest.raises(NotImplementedError, match="cpu computes on cpu tensors, q is on cuda"):
        flash_kda.chunk_kda(*x.token_tensors)
