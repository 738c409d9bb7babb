"""fwd as FlashKDA's callers use it, and what it adds: pools, checkpoints, workspace, views of any stride."""

import inspect

import pytest
import torch

import flash_kda

from oracle import BF16, FP32, OUT_BAR, STATE_BAR, random_inputs, recurrence, relative_rms

SCALE = 128**-0.5


def call(x, out, *, initial_state=None, final_state=None, **options):
    """fwd on the inputs x, positionally as FlashKDA's callers do."""
    return flash_kda.fwd(
        x.q, x.k, x.v, x.g, x.beta, SCALE, out, x.A_log, x.dt_bias, -5.0, initial_state, final_state, x.cu_seqlens,
        **options,
    )  # fmt: skip


def reference(inputs):
    return recurrence(inputs, gate="bounded", l2norm=True, beta_form="sigmoid")


def v_first(states):
    return states.transpose(-1, -2).contiguous()


def test_signature():
    """The thirteen first parameters are FlashKDA's contract; the rest is keyword-only."""
    parameters = list(inspect.signature(flash_kda.fwd).parameters.values())
    names = [
        "q",
        "k",
        "v",
        "g",
        "beta",
        "scale",
        "out",
        "A_log",
        "dt_bias",
        "lower_bound",
        "initial_state",
        "final_state",
        "cu_seqlens",
    ]
    assert [p.name for p in parameters[:13]] == names
    assert all(p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters[:13])
    assert all(p.kind == p.KEYWORD_ONLY for p in parameters[13:])


@pytest.mark.parametrize("state_dtype", [BF16, FP32])
@pytest.mark.parametrize("flat_bias", [False, True])
def test_writes_out_and_final_state(state_dtype, flat_bias, device):
    inputs = random_inputs(B=2, initial_state=True)
    inputs.initial_state = inputs.initial_state.to(state_dtype)
    expected = reference(inputs)
    x = inputs.to(device)
    if flat_bias:
        x.dt_bias = x.dt_bias.flatten()
    out = torch.full_like(x.v, float("nan"))
    final_state = torch.full((2, 4, 128, 128), float("nan"), dtype=state_dtype, device=device)
    assert call(x, out, initial_state=v_first(x.initial_state), final_state=final_state) is None
    assert relative_rms(out, expected.o) <= OUT_BAR[device][BF16]
    assert relative_rms(final_state.mT, expected.final_state) <= STATE_BAR[device][state_dtype]


def test_dtypes_of_the_two_states_are_free(device):
    inputs = random_inputs(initial_state=True)
    inputs.initial_state = inputs.initial_state.to(BF16)
    x, expected = inputs.to(device), reference(inputs)
    out, final_state = torch.empty_like(x.v), torch.empty(1, 4, 128, 128, device=device)
    call(x, out, initial_state=v_first(x.initial_state), final_state=final_state)
    assert relative_rms(final_state.mT, expected.final_state) <= STATE_BAR[device][FP32]


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_as_sglang_calls_it(index_dtype, device):
    """States gathered from a pool [slots,H,V,K], thirteen positional arguments, A_log from [1,1,H,1], [1,T,..]."""
    inputs = random_inputs(T=130, H=3, HV=3, cu_seqlens=[0, 64, 130], initial_state=True)
    expected = reference(inputs)
    x = inputs.to(device)
    A_log = x.A_log.reshape(1, 1, 3, 1).view(-1)
    states = v_first(x.initial_state)
    out, final = torch.empty_like(x.v), torch.empty_like(states)
    flash_kda.fwd(
        x.q, x.k, x.v, x.g, x.beta, SCALE, out, A_log, x.dt_bias.flatten().view(3, 128), -5.0, states, final,
        x.cu_seqlens.to(index_dtype),
    )  # fmt: skip
    assert relative_rms(out, expected.o) <= OUT_BAR[device][BF16]
    assert relative_rms(final.mT, expected.final_state) <= STATE_BAR[device][FP32]


def test_as_vllm_calls_it(device):
    """H 12 of a larger projection, beta rows 6288 apart, int32 cu_seqlens, two checkpoints a sequence."""
    inputs = random_inputs(T=83, H=12, HV=12, cu_seqlens=[0, 50, 83], initial_state=True)
    expected = reference(inputs)
    x = inputs.to(device)
    wide = torch.full((1, 83, 6288), float("nan"), dtype=BF16, device=device)
    wide[..., 5:17] = x.beta
    x.beta = wide[..., 5:17]
    assert x.beta.stride() == (83 * 6288, 6288, 1)
    x.cu_seqlens = x.cu_seqlens.to(torch.int32)
    out, final = torch.empty_like(x.v), torch.empty(2, 12, 128, 128, device=device)
    checkpoints = torch.full((2, 2, 12, 128, 128), 7.0, device=device)
    offsets = torch.tensor([[16, 48], [32, -1]], dtype=torch.int32, device=device)
    call(
        x, out, initial_state=v_first(x.initial_state), final_state=final, checkpoints=checkpoints,
        checkpoint_offsets=offsets,
    )  # fmt: skip
    assert relative_rms(out, expected.o) <= OUT_BAR[device][BF16]
    assert relative_rms(final.mT, expected.final_state) <= STATE_BAR[device][FP32]
    for n, p, tokens in ((0, 0, 16), (0, 1, 48), (1, 0, 32)):
        assert relative_rms(checkpoints[n, p].mT, expected.states[n][tokens]) <= STATE_BAR[device][FP32]
    assert (checkpoints[1, 1] == 7.0).all()


def test_checkpoint_is_the_prefix_final_state(device):
    """Case 61: a checkpoint has the bits of the final state of a call that ends there; 0 and the length count too."""
    inputs = random_inputs(T=130, initial_state=True)
    x = inputs.to(device)
    initial = v_first(x.initial_state)
    checkpoints = torch.empty(1, 3, 4, 128, 128, device=device)
    offsets = torch.tensor([[128, 0, 16]], device=device)
    options = dict(initial_state=initial, batch_invariant=True)
    call(x, torch.empty_like(x.v), checkpoints=checkpoints, checkpoint_offsets=offsets, **options)
    for p, tokens in enumerate((128, 0, 16)):
        prefix = random_inputs(T=130, initial_state=True).to(device)
        prefix.q, prefix.k, prefix.v, prefix.g, prefix.beta = (t[:, :tokens] for t in x.token_tensors)
        final = torch.empty(1, 4, 128, 128, device=device)
        call(prefix, torch.empty_like(prefix.v), final_state=final, **options)
        assert torch.equal(checkpoints[0, p], final[0])


def test_in_place(device):
    inputs = random_inputs(initial_state=True)
    x = inputs.to(device)
    apart, separate = torch.empty_like(x.v), torch.empty(1, 4, 128, 128, device=device)
    initial = v_first(x.initial_state)
    call(x, apart, initial_state=initial, final_state=separate)
    for final in (initial, initial.view(1, 4, 128, 128)):  # the same tensor, then another view of its memory
        state = initial.clone()
        out = torch.empty_like(x.v)
        call(x, out, initial_state=state, final_state=state if final is initial else state.view(1, 4, 128, 128))
        assert torch.equal(out, apart)
        assert torch.equal(state, separate)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("state_dtype", [BF16, FP32])
def test_pool_in_place(index_dtype, state_dtype, device):
    """Case 6: a pool with padded slots; only the slots of sequences change, -1 starts from zero and stores nothing."""
    inputs = random_inputs(B=3, T=20, initial_state=True)
    storage = torch.full((5, 4 * 128 * 128 + 640), float("nan"), dtype=state_dtype)
    pool = storage[:, : 4 * 128 * 128].view(5, 4, 128, 128)
    assert not pool.is_contiguous()
    pool[3], pool[0] = v_first(inputs.initial_state[0]), v_first(inputs.initial_state[2])
    inputs.initial_state[0], inputs.initial_state[2] = pool[3].mT, pool[0].mT  # as rounded
    inputs.initial_state[1] = 0.0
    expected = reference(inputs)
    x, storage = inputs.to(device), storage.to(device)
    pool = storage[:, : 4 * 128 * 128].view(5, 4, 128, 128)
    out = torch.empty_like(x.v)
    indices = torch.tensor([3, -1, 0], dtype=index_dtype, device=device)
    call(x, out, initial_state=pool, final_state=pool, state_indices=indices)
    assert relative_rms(out, expected.o) <= OUT_BAR[device][BF16]
    assert relative_rms(pool[3].mT, expected.final_state[0]) <= STATE_BAR[device][state_dtype]
    assert relative_rms(pool[0].mT, expected.final_state[2]) <= STATE_BAR[device][state_dtype]
    assert pool[[1, 2, 4]].isnan().all()
    assert storage[:, 4 * 128 * 128 :].isnan().all()


def test_fresh_slot_keeps_no_secret(device):
    """Case 62: a sequence without an initial state never reads the slot it will be stored in."""
    inputs = random_inputs(T=20)
    x, expected = inputs.to(device), reference(inputs)
    pool = torch.full((4, 4, 128, 128), float("nan"), device=device)
    out = torch.empty_like(x.v)
    call(x, out, final_state=pool, state_indices=torch.tensor([3], device=device))
    assert relative_rms(out, expected.o) <= OUT_BAR[device][BF16]
    assert relative_rms(pool[3].mT, expected.final_state[0]) <= STATE_BAR[device][FP32]
    assert pool[:3].isnan().all()


def test_views_of_one_projection(device):
    """Case 20: q, k, v as slices of one [T, 3*H*D + pad], out as a slice too: the bits of dense tensors."""
    inputs = random_inputs(T=40, H=2, HV=2)
    x = inputs.to(device)
    expected = torch.empty_like(x.v)
    call(x, expected)
    projection = torch.full((1, 40, 3 * 256 + 24), float("nan"), dtype=BF16, device=device)
    for i, tensor in enumerate((x.q, x.k, x.v)):
        projection[..., 256 * i : 256 * (i + 1)] = tensor.reshape(1, 40, 256)
    x.q, x.k, x.v = (projection[..., 256 * i : 256 * (i + 1)].unflatten(-1, (2, 128)) for i in range(3))
    gap = {"cpu": 1, "cuda": 8}[device]  # elements: the GPU needs its rows 16-byte aligned
    gates = torch.full((1, 40, 3, 128 + gap), float("nan"), dtype=BF16, device=device)
    gates[:, :, 1:, gap:] = x.g
    x.g = gates[:, :, 1:, gap:]  # on the CPU begins 2 bytes past a multiple of 4; heads and tokens have gaps
    wide = torch.full((1, 40, 2, 200), 3.0, dtype=BF16, device=device)
    call(x, wide[..., 8:136])
    assert torch.equal(wide[..., 8:136], expected)
    assert (wide[..., :8] == 3.0).all() and (wide[..., 136:] == 3.0).all()


def test_heads_first_memory(device):
    """[B,H,T,D] memory seen as [B,T,H,D]: any token and head stride, no copy."""
    inputs = random_inputs(B=2, T=40)
    x = inputs.to(device)
    expected = torch.empty_like(x.v)
    call(x, expected)
    x.q, x.k, x.v, x.g = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x.q, x.k, x.v, x.g))
    out = torch.empty_like(x.v.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
    call(x, out)
    assert torch.equal(out, expected)


def test_workspace(device):
    """The size that workspace_size says is enough wherever the memory begins, its contents never matter."""
    inputs = random_inputs(T=100, cu_seqlens=[0, 33, 100])
    x = inputs.to(device)
    expected = torch.empty_like(x.v)
    call(x, expected)
    out = torch.empty_like(x.v)
    size = flash_kda.workspace_size(
        x.q, x.k, x.v, x.g, x.beta, SCALE, out, x.A_log, x.dt_bias, -5.0, cu_seqlens=x.cu_seqlens
    )
    assert size > 0
    memory = torch.full((size + 64,), 255, dtype=torch.uint8, device=device)  # NaN as any float type
    for offset in range(0, 65, 8):
        call(x, out.fill_(float("nan")), workspace=memory[offset : offset + size])
        assert torch.equal(out, expected)


def test_workspace_one_byte_short(device):
    """Case 53: what counts is the room from the first aligned byte on."""
    x = random_inputs(T=100).to(device)
    out = torch.full_like(x.v, 7.0)
    alignment = 256  # FKDA_WORKSPACE_ALIGNMENT
    enough_anywhere = flash_kda.workspace_size(
        x.q, x.k, x.v, x.g, x.beta, SCALE, out, x.A_log, x.dt_bias, -5.0, cu_seqlens=x.cu_seqlens, batch_invariant=True
    )
    needed = enough_anywhere - (alignment - 1)
    memory = torch.empty(needed + 2 * alignment, dtype=torch.uint8, device=device)
    aligned = memory[-memory.data_ptr() % alignment :]
    for short in (aligned[: needed - 1], aligned[1 : needed + alignment - 1]):
        with pytest.raises(ValueError, match=f"^workspace: got {needed - 1} bytes, needs {needed}$"):
            call(x, out, workspace=short, batch_invariant=True)
        assert (out == 7.0).all()
    call(x, out, workspace=aligned[:needed], batch_invariant=True)
    call(x, out, workspace=aligned[1 : needed + alignment], batch_invariant=True)


def test_sequence_split_by_name(device):
    x = random_inputs(T=300).to(device)
    results = {}
    for name in ("auto", "exact", "never"):
        results[name] = torch.empty_like(x.v)
        call(x, results[name], sequence_split=name)
        assert relative_rms(results[name], results["auto"]) <= OUT_BAR[device][BF16]
    with pytest.raises(ValueError, match="""^sequence_split: got 'always', needs "auto", "exact" or "never"$"""):
        call(x, torch.empty_like(x.v), sequence_split="always")


def test_no_sequences(device):
    x = random_inputs(T=0, cu_seqlens=[0]).to(device)
    call(x, torch.empty_like(x.v), final_state=torch.empty(0, 4, 128, 128, device=device))
