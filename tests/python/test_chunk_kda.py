"""chunk_kda and fused_recurrent_kda with fla's names against fp64: every flag, type, width and layout."""

import pytest
import torch

import flash_kda

from oracle import BF16, FINEST, FP16, FP32, OUT_BAR, STATE_BAR, random_inputs, recurrence, relative_rms

GATES = {
    "log": dict(use_gate_in_kernel=False),
    "bounded": dict(use_gate_in_kernel=True, lower_bound=-5.0),
    "softplus": dict(use_gate_in_kernel=True),
}
BETA_FORMS = {
    "activated": dict(use_beta_sigmoid_in_kernel=False),
    "sigmoid": dict(use_beta_sigmoid_in_kernel=True),
    "twice": dict(use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True),
}


def prepare(inputs, gate="log", beta_form="activated"):
    """Makes g a log decay and beta a factor where the call takes them so."""
    if gate == "log":
        inputs.g = -inputs.g.abs() * 0.3
        inputs.A_log = inputs.dt_bias = None
    if beta_form == "activated":
        inputs.beta = inputs.beta.sigmoid()
    return inputs


def run(function, inputs, device, *, v_first=False, **options):
    """Calls with the inputs on the device; results come back on the CPU with states [.., K, V]."""
    x = inputs.to(device)
    state = x.initial_state
    if state is not None and v_first:
        state = state.transpose(-1, -2).contiguous()
    o, final_state, *h = function(
        *x.token_tensors, A_log=x.A_log, dt_bias=x.dt_bias, initial_state=state, cu_seqlens=x.cu_seqlens,
        output_final_state=True, state_v_first=v_first, **options,
    )  # fmt: skip
    states = [s.cpu().transpose(-1, -2) if v_first else s.cpu() for s in (final_state, *h)]
    return (o.cpu(), *states)


def check(function, inputs, device, *, gate="log", beta_form="activated", l2norm=True, v_first=False, **options):
    prepare(inputs, gate, beta_form)
    expected = recurrence(
        inputs, gate=gate, l2norm=l2norm, beta_form=beta_form, scale=options.get("scale"),
        lower_bound=options.get("lower_bound", -5.0),
    )  # fmt: skip
    flags = dict(use_qk_l2norm_in_kernel=l2norm) | GATES[gate] | BETA_FORMS[beta_form] | options
    o, final_state = run(function, inputs, device, v_first=v_first, **flags)
    assert o.dtype == inputs.q.dtype
    assert final_state.dtype == FP32
    assert relative_rms(o, expected.o) <= OUT_BAR[device][o.dtype]
    assert relative_rms(final_state, expected.final_state) <= STATE_BAR[device][FP32]


both = pytest.mark.parametrize("function", [flash_kda.chunk_kda, flash_kda.fused_recurrent_kda])


@both
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("beta_form", BETA_FORMS)
def test_gates_and_beta_forms(function, gate, beta_form, device):
    check(function, random_inputs(initial_state=True), device, gate=gate, beta_form=beta_form)


@both
@pytest.mark.parametrize("l2norm", [True, False])
@pytest.mark.parametrize("scale", [None, 0.37, 1])
def test_norm_and_scale(function, l2norm, scale, device):
    inputs = random_inputs()
    if not l2norm:  # unnormalised keys must be short for the recurrence to be stable
        inputs.q, inputs.k = (inputs.q * 0.08).to(BF16), (inputs.k * 0.08).to(BF16)
    check(function, inputs, device, l2norm=l2norm, scale=scale)


@pytest.mark.parametrize("lower_bound", [-5.0, -1, -1e-3])
def test_lower_bound(lower_bound, device):
    check(flash_kda.chunk_kda, random_inputs(), device, gate="bounded", lower_bound=lower_bound, safe_gate=True)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("gate_dtype", [BF16, FP16, FP32])
def test_dtypes(dtype, gate_dtype, device):
    inputs = random_inputs(dtype=dtype, g_dtype=gate_dtype, beta_dtype=gate_dtype)
    if device == "cuda" and dtype == FP32:
        with pytest.raises(NotImplementedError, match="cuda misses: fp32; supports: .*bf16 fp16"):
            run(flash_kda.chunk_kda, inputs, device)
    else:
        check(flash_kda.chunk_kda, inputs, device, gate="bounded", beta_form="sigmoid")


def test_gate_dtypes_in_any_order(device):
    """Case 25: fp32 g, then bf16 g of the same shape, and back."""
    for g_dtype in (FP32, BF16, FP32):
        check(flash_kda.chunk_kda, random_inputs(g_dtype=g_dtype), device, gate="softplus")


@pytest.mark.parametrize("H, HV", [(1, 1), (3, 3), (2, 6), (1, 32)])
def test_value_heads_share_keys(H, HV, device):
    check(flash_kda.chunk_kda, random_inputs(T=33, H=H, HV=HV), device, gate="bounded", beta_form="sigmoid")


@pytest.mark.parametrize("K, V", [(32, 32), (64, 64), (96, 96), (256, 256), (64, 512), (128, 40)])
def test_widths(K, V, device):
    inputs = random_inputs(T=35, K=K, V=V, initial_state=True)
    if device == "cuda" and not K == V == 64:
        with pytest.raises(NotImplementedError, match="cuda misses: K,V=8n<=512; supports: .*K=V=128 K=V=64"):
            run(flash_kda.chunk_kda, inputs, device)
    else:
        check(flash_kda.chunk_kda, inputs, device, gate="softplus")


@pytest.mark.parametrize("T", [0, 1, 15, 16, 17, 31, 63, 64, 65, 130])
@pytest.mark.parametrize("v_first", [False, True])
def test_lengths_of_a_dense_batch(T, v_first, device):
    inputs = random_inputs(B=2, T=T, initial_state=True)
    check(flash_kda.chunk_kda, inputs, device, gate="bounded", v_first=v_first)


@both
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("cu", [[0, 67], [0, 1, 17, 33, 67], [0, 0, 67], [0, 67, 67], [0, 5, 5, 5, 67]])
def test_packed(function, cu, index_dtype, device):
    inputs = random_inputs(cu_seqlens=cu, initial_state=True)
    inputs.cu_seqlens = inputs.cu_seqlens.to(index_dtype)
    check(function, inputs, device, gate="bounded", beta_form="sigmoid")


@pytest.mark.parametrize("cu", [[0], [0, 0], [0, 0, 0]])
@pytest.mark.parametrize("state_dtype", [None, BF16, FP32])
def test_no_tokens(cu, state_dtype, device):
    """Case 4: the final state of an empty sequence is its initial state bit for bit, or zero."""
    inputs = random_inputs(T=0, cu_seqlens=cu, initial_state=state_dtype is not None)
    if state_dtype is not None:
        inputs.initial_state = inputs.initial_state.to(state_dtype)
    o, final_state = run(flash_kda.chunk_kda, prepare(inputs), device)
    assert o.shape == (1, 0, 4, 128)
    expected = torch.zeros(len(cu) - 1, 4, 128, 128) if state_dtype is None else inputs.initial_state.float()
    assert torch.equal(final_state, expected)


@pytest.mark.parametrize("state_dtype", [BF16, FP32])
def test_initial_state_dtype(state_dtype, device):
    inputs = random_inputs(initial_state=True)
    inputs.initial_state = inputs.initial_state.to(state_dtype)
    check(flash_kda.chunk_kda, inputs, device)


def test_dt_bias_flat_and_absent(device):
    """Cases 21 and 51."""
    inputs = random_inputs(dtype=FINEST[device])
    options = dict(use_gate_in_kernel=True, lower_bound=-5.0, use_qk_l2norm_in_kernel=True)
    prepare(inputs, "bounded")
    matrix = run(flash_kda.chunk_kda, inputs, device, **options)
    inputs.dt_bias = inputs.dt_bias.flatten()
    flat = run(flash_kda.chunk_kda, inputs, device, **options)
    assert all(torch.equal(a, b) for a, b in zip(matrix, flat, strict=True))
    inputs.dt_bias = None
    check(flash_kda.chunk_kda, inputs, device, gate="bounded")
    inputs = random_inputs()
    inputs.A_log = None
    check(flash_kda.chunk_kda, inputs, device, gate="bounded")


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4, 1), (2, 2)])
def test_head_rates_of_any_shape(shape, device):
    inputs = random_inputs()
    inputs.A_log = inputs.A_log.reshape(shape)
    check(flash_kda.chunk_kda, inputs, device, gate="softplus")


def test_gate_parameters_without_gate_in_kernel_have_no_effect(device):
    """As in fla: a model may pass them always."""
    inputs = prepare(random_inputs())
    plain = run(flash_kda.chunk_kda, inputs, device)
    inputs.A_log, inputs.dt_bias = torch.ones(4), torch.ones(4, 128)
    assert torch.equal(run(flash_kda.chunk_kda, inputs, device, lower_bound=-5.0)[0], plain[0])


def test_no_final_state_unless_asked(device):
    """Case 43."""
    x = prepare(random_inputs()).to(device)
    for function in (flash_kda.chunk_kda, flash_kda.fused_recurrent_kda):
        o, final_state = function(*x.token_tensors, use_qk_l2norm_in_kernel=True)
        assert final_state is None
        assert o.isfinite().all()


@pytest.mark.parametrize("cu", [None, [0, 0, 17, 64, 130]])
@pytest.mark.parametrize("chunk_size", [16, 32, 64])
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("with_cpu_copy", [False, True])
def test_intermediate_states(cu, chunk_size, v_first, with_cpu_copy, device):
    """h is the state before every chunk_size tokens of each sequence, in the dtype of q."""
    inputs = prepare(random_inputs(B=1 if cu else 2, T=130, cu_seqlens=cu, initial_state=True))
    expected = recurrence(inputs, l2norm=True)
    rows = [trail[:-1:chunk_size] for trail in expected.states]
    expected_h = torch.cat(rows).unsqueeze(0) if cu else torch.stack(rows)
    options = dict(cu_seqlens_cpu=inputs.cu_seqlens) if cu and with_cpu_copy else {}
    _, _, h = run(
        flash_kda.chunk_kda, inputs, device, v_first=v_first, chunk_size=chunk_size, return_intermediate_states=True,
        use_qk_l2norm_in_kernel=True, **options,
    )  # fmt: skip
    assert h.dtype == BF16
    assert relative_rms(h, expected_h) <= STATE_BAR[device][BF16]


def test_prefill_then_decode_is_one_prefill(device):
    """Case 7: 17 tokens then 1 give what 18 give, whichever functions do it."""
    inputs = prepare(random_inputs(T=18, dtype=FINEST[device]))
    q, k, v, g, beta = (x.to(device) for x in inputs.token_tensors)
    expected = recurrence(inputs, l2norm=True)
    for first in (flash_kda.chunk_kda, flash_kda.fused_recurrent_kda):
        for second in (flash_kda.chunk_kda, flash_kda.fused_recurrent_kda):
            options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
            head, tail = ([x[:, rows] for x in (q, k, v, g, beta)] for rows in (slice(17), slice(17, 18)))
            o1, state = first(*head, **options)
            o2, state = second(*tail, initial_state=state, **options)
            assert relative_rms(torch.cat([o1, o2], dim=1), expected.o) <= OUT_BAR[device][o1.dtype]
            assert relative_rms(state, expected.final_state) <= STATE_BAR[device][FP32]


def test_one_token_lands_at_its_key_and_value(device):
    """Case 7: zero state, k = e_0, v = e_1, beta 1: one entry, [K,V] = [0,1], v-first [1,0]."""
    q = torch.zeros(1, 1, 1, 128, dtype=BF16, device=device)
    k, v = q.clone(), q.clone()
    q[..., 0] = k[..., 0] = v[..., 1] = 1.0
    g, beta = torch.zeros_like(q), torch.ones(1, 1, 1, dtype=BF16, device=device)
    for v_first, index in ((False, (0, 1)), (True, (1, 0))):
        for function in (flash_kda.chunk_kda, flash_kda.fused_recurrent_kda):
            o, state = function(q, k, v, g, beta, scale=1.0, output_final_state=True, state_v_first=v_first)
            expected = torch.zeros(128, 128)
            expected[index] = 1.0
            assert torch.equal(state[0, 0].cpu(), expected)
            assert torch.equal(o.cpu(), v.cpu())


def test_older_name_of_state_v_first(device):
    x = prepare(random_inputs()).to(device)
    options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
    for function in (flash_kda.chunk_kda, flash_kda.fused_recurrent_kda):
        _, k_first = function(*x.token_tensors, **options)
        _, v_first = function(*x.token_tensors, transpose_state_layout=True, **options)
        assert relative_rms(v_first, k_first.transpose(-1, -2)) <= STATE_BAR[device][FP32]


def test_arguments_that_only_matter_for_fla(device):
    x = prepare(random_inputs()).to(device)
    plain, _ = flash_kda.chunk_kda(*x.token_tensors)
    same, _ = flash_kda.chunk_kda(
        *x.token_tensors, disable_recompute=True, use_graph=True, max_num_seqs=1, cp_context=None
    )
    assert torch.equal(plain, same)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("function", [flash_kda.chunk_kda, flash_kda.fused_recurrent_kda])
def test_pool_of_states(function, index_dtype, device):
    """state_indices: only the slots of sequences change, and a negative index reads and stores nothing."""
    inputs = prepare(random_inputs(B=3, T=20, initial_state=True))
    pool = torch.full((6, 4, 128, 128), float("nan"))
    pool[4], pool[1] = inputs.initial_state[0], inputs.initial_state[2]
    inputs.initial_state[1] = 0.0
    expected = recurrence(inputs, l2norm=True)
    x, before = inputs.to(device), pool.clone()
    pool = pool.to(device)
    indices = torch.tensor([4, -1, 1], dtype=index_dtype, device=device)
    options = dict(state_indices=indices, use_qk_l2norm_in_kernel=True)

    read_only, nothing = function(*x.token_tensors, initial_state=pool, **options)
    assert nothing is None
    assert torch.equal(pool.cpu().nan_to_num(), before.nan_to_num())

    o, final_state = function(*x.token_tensors, initial_state=pool, output_final_state=True, **options)
    assert final_state is pool
    assert torch.equal(o, read_only)
    assert relative_rms(o, expected.o) <= OUT_BAR[device][BF16]
    pool = pool.cpu()
    assert relative_rms(pool[4], expected.final_state[0]) <= STATE_BAR[device][FP32]
    assert relative_rms(pool[1], expected.final_state[2]) <= STATE_BAR[device][FP32]
    assert pool[[0, 2, 3, 5]].isnan().all()


def test_extreme_gates_and_logits(device):
    """Cases 2, 47, 48: everything forgotten, nothing forgotten, saturated: finite and right."""
    inputs = random_inputs(T=129, dtype=FINEST[device])
    inputs.g = torch.tensor([0.0, -5.0, -20.0, -88.0, -1000.0])[torch.arange(129) % 5].reshape(1, 129, 1, 1)
    inputs.g = inputs.g.expand(1, 129, 4, 128).contiguous()
    inputs.A_log = inputs.dt_bias = None
    inputs.beta = torch.tensor([float("inf"), -float("inf"), 100.0, -100.0])[torch.arange(129) % 4]
    inputs.beta = inputs.beta.reshape(1, 129, 1).expand(1, 129, 4).contiguous()
    expected = recurrence(inputs, l2norm=True, beta_form="sigmoid")
    o, state = run(flash_kda.chunk_kda, inputs, device, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True)
    assert relative_rms(o, expected.o) <= OUT_BAR[device][o.dtype]
    assert relative_rms(state, expected.final_state) <= STATE_BAR[device][FP32]


def test_repeatable_and_inputs_unchanged(device):
    """Case 22."""
    inputs = prepare(random_inputs(initial_state=True))
    x, copy = inputs.to(device), inputs.to(device)
    copies = [t.clone() for t in (*copy.token_tensors, copy.initial_state)]
    options = dict(initial_state=x.initial_state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    first = flash_kda.chunk_kda(*x.token_tensors, **options)
    second = flash_kda.chunk_kda(*x.token_tensors, **options)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(copies, (*x.token_tensors, x.initial_state), strict=True))


def test_neighbours_never_matter(device):
    """Case 3: a packed sequence has the bits it has alone, whatever its neighbours hold."""
    inputs = prepare(random_inputs(T=70, cu_seqlens=[0, 23, 50, 70]))
    alone = [x[:, 23:50].to(device) for x in inputs.token_tensors]
    options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True, batch_invariant=True)
    expected = flash_kda.chunk_kda(*alone, **options)
    for tensor in inputs.token_tensors:
        tensor[:, :23] = float("nan")
        tensor[:, 50:] = float("nan")
    x = inputs.to(device)
    o, state = flash_kda.chunk_kda(*x.token_tensors, cu_seqlens=x.cu_seqlens, **options)
    assert torch.equal(o[:, 23:50], expected[0])
    assert torch.equal(state[1], expected[1][0])
