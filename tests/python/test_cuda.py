"""What holds on a GPU alone: streams, devices, graphs, the allocator, alignment; the calls as servers make them.

The tests of the other files run on CUDA tensors too: those that take the fixture `device`.
"""

import pytest
import torch

import flash_kda

from oracle import BF16, FP32, OUT_BAR, STATE_BAR, random_inputs, recurrence, relative_rms

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

SCALE = 128**-0.5
BUSY = 100_000_000  # cycles that a stream is kept waiting, some 50 ms


def fwd(x, out, initial_state=None, final_state=None, **options):
    flash_kda.fwd(
        x.q, x.k, x.v, x.g, x.beta, SCALE, out, x.A_log, x.dt_bias, -5.0, initial_state, final_state, x.cu_seqlens,
        **options,
    )  # fmt: skip


def reference(inputs):
    return recurrence(inputs, gate="bounded", l2norm=True, beta_form="sigmoid")


def v_first(states):
    return states.transpose(-1, -2).contiguous()


def filled_like(tensor, value=float("nan")):
    return torch.full_like(tensor, value)


# --------------------------------------------------------------------------------------------- streams and devices


def test_runs_on_the_current_stream_and_returns_at_once():
    """The inputs arrive late on a stream of their own: only work queued behind them there sees them."""
    inputs = random_inputs(T=100)
    x, expected = inputs.to("cuda"), reference(inputs)
    fwd(x, torch.empty_like(x.v))  # loads the kernels, which may wait for the device
    late = random_inputs(T=100).to("cuda")
    for tensor in late.token_tensors:
        tensor.fill_(float("nan"))
    out = filled_like(x.v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        for to, tensor in zip(late.token_tensors, x.token_tensors, strict=True):
            to.copy_(tensor)
        arrived = stream.record_event()
        fwd(late, out)
        assert not arrived.query(), "the call waited for the GPU"
    stream.synchronize()
    assert relative_rms(out, expected.o) <= OUT_BAR["cuda"][BF16]


def test_two_streams_share_nothing():
    problems = [random_inputs(B=2, T=500, HV=8, H=8, seed=seed).to("cuda") for seed in range(2)]
    expected = [torch.empty_like(x.v) for x in problems]
    for x, out in zip(problems, expected, strict=True):
        fwd(x, out)
    streams = [torch.cuda.Stream() for _ in problems]
    outs = [[filled_like(x.v) for _ in range(20)] for x in problems]
    torch.cuda.synchronize()
    for i in range(20):
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                fwd(problems[n], outs[n][i])
    torch.cuda.synchronize()
    for n in range(2):
        assert all(torch.equal(out, expected[n]) for out in outs[n])


def test_tensors_of_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    inputs = random_inputs(T=70, cu_seqlens=[0, 33, 70], initial_state=True)
    x, expected = inputs.to("cuda:1"), reference(inputs)
    states = v_first(x.initial_state)
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    out = filled_like(x.v)
    for stream in (torch.cuda.default_stream(1), torch.cuda.Stream(1)):
        with torch.cuda.stream(stream):  # makes device 1 current, too
            torch.cuda._sleep(BUSY)
            out.fill_(float("nan"))  # late: spoils what runs on another stream
            torch.cuda.set_device(0)
            fwd(x, out, states, states.clone())
            assert torch.cuda.current_device() == 0
        stream.synchronize()
        assert relative_rms(out, expected.o) <= OUT_BAR["cuda"][BF16]
    with pytest.raises(ValueError, match="^k: is on cuda:0, needs cuda:1, the device of q"):
        x.k = x.k.to("cuda:0")
        fwd(x, out)


# ---------------------------------------------------------------------------------------------------------- graphs


def test_graph_follows_its_inputs():
    """Captured once; a replay computes what then stands in the tensors, cu_seqlens and state_indices included: the bits
    of a call with tensors of its own."""

    def problem(seed, cu, slots, tokens):
        """(inputs, out, pool, checkpoints, state_indices, checkpoint_offsets)"""
        x = random_inputs(T=150, H=4, HV=4, cu_seqlens=cu, seed=seed).to("cuda")
        pool = torch.randn(6, 4, 128, 128, generator=torch.Generator().manual_seed(seed)).to("cuda")
        checkpoints = torch.full((3, 1, 4, 128, 128), 7.0, device="cuda")
        slots, tokens = torch.tensor(slots, device="cuda"), torch.tensor(tokens, device="cuda").unsqueeze(1)
        return x, filled_like(x.v), pool, checkpoints, slots, tokens

    def step(x, out, pool, checkpoints, slots, tokens):
        fwd(x, out, pool, pool, state_indices=slots, checkpoints=checkpoints, checkpoint_offsets=tokens)

    step(*problem(0, [0, 50, 100, 150], [5, 0, 2], [48, 16, 0]))  # loads the kernels
    captured = problem(0, [0, 50, 100, 150], [5, 0, 2], [48, 16, 0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(*captured)
    for seed, cu, slots, tokens in (
        (1, [0, 50, 100, 150], [5, 0, 2], [48, 16, 0]),
        (2, [0, 0, 149, 150], [1, 3, -1], [0, 144, -1]),
        (3, [0, 17, 33, 150], [2, -1, 4], [16, -1, 112]),
    ):
        fresh = problem(seed, cu, slots, tokens)
        for to, tensor in zip(captured[1:], fresh[1:], strict=True):
            to.copy_(tensor)
        for to, tensor in zip(captured[0].token_tensors, fresh[0].token_tensors, strict=True):
            to.copy_(tensor)
        captured[0].cu_seqlens.copy_(fresh[0].cu_seqlens)
        captured[0].A_log.copy_(fresh[0].A_log)
        captured[0].dt_bias.copy_(fresh[0].dt_bias)
        graph.replay()
        step(*fresh)
        assert all(torch.equal(a, b) for a, b in zip(captured[1:], fresh[1:], strict=True))


def test_graph_of_the_functions_that_allocate():
    """o, the state, h and the workspace come from the graph's pool; cu_seqlens_cpu gives h's size without a read."""
    x = random_inputs(T=150, cu_seqlens=[0, 50, 150]).to("cuda")
    cu_cpu = x.cu_seqlens.cpu()
    options = dict(
        A_log=x.A_log, dt_bias=x.dt_bias, use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, output_final_state=True, cu_seqlens=x.cu_seqlens,
    )  # fmt: skip

    def step():
        h = dict(return_intermediate_states=True, cu_seqlens_cpu=cu_cpu)
        return (
            *flash_kda.chunk_kda(*x.token_tensors, **options, **h),
            *flash_kda.fused_recurrent_kda(*x.token_tensors, **options),
        )

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for to, tensor in zip(x.token_tensors, random_inputs(T=150, seed=3).token_tensors, strict=True):
        to.copy_(tensor)
    expected = step()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


# ---------------------------------------------------------------------------------------------------------- memory


def allocated_by(call) -> int:
    """Bytes that torch's allocator gave out at most during the call, above what it had given out before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    assert torch.cuda.memory_allocated() == before
    return torch.cuda.max_memory_allocated() - before


def test_allocates_the_workspace_and_no_more():
    """Strided views of one projection, beta rows 6288 apart, a padded pool: nothing is copied."""
    x = random_inputs(T=300, H=4, HV=4, cu_seqlens=[0, 100, 300]).to("cuda")
    projection = torch.zeros(1, 300, 6288, dtype=BF16, device="cuda")
    for i, name in enumerate(("q", "k", "v")):
        view = projection[..., 512 * i : 512 * (i + 1)].unflatten(-1, (4, 128))
        view.copy_(getattr(x, name))
        setattr(x, name, view)
    projection[..., 5000:5004] = x.beta
    x.beta = projection[..., 5000:5004]
    x.cu_seqlens = x.cu_seqlens.int()
    pool = torch.zeros(4, 4 * 128 * 128 + 64, device="cuda")[:, : 4 * 128 * 128].unflatten(1, (4, 128, 128))
    slots = torch.tensor([2, 1], device="cuda")
    out = torch.empty(1, 300, 4, 128, dtype=BF16, device="cuda")
    arguments = (x.q, x.k, x.v, x.g, x.beta, SCALE, out, x.A_log, x.dt_bias, -5.0, pool, pool, x.cu_seqlens)
    flash_kda.fwd(*arguments, state_indices=slots)
    size = flash_kda.workspace_size(*arguments, state_indices=slots)
    granule = 512  # of torch's allocator
    own = allocated_by(lambda: flash_kda.fwd(*arguments, state_indices=slots))
    assert own == -(-size // granule) * granule
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert allocated_by(lambda: flash_kda.fwd(*arguments, state_indices=slots, workspace=workspace)) == 0


def test_the_same_bits_a_hundred_times_beside_other_work():
    x = random_inputs(B=1, T=700, H=8, HV=8, cu_seqlens=[0, 129, 400, 700], initial_state=True).to("cuda")
    copies = [t.clone() for t in (*x.token_tensors, x.A_log, x.dt_bias, x.cu_seqlens)]
    states = v_first(x.initial_state)
    expected = torch.empty_like(x.v), torch.empty_like(states)
    fwd(x, expected[0], states, expected[1])
    matrix = torch.randn(2048, 2048, device="cuda")
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(100):
        with torch.cuda.stream(other):
            matrix = matrix @ matrix * 1e-3
        out, final = filled_like(expected[0]), filled_like(expected[1])
        fwd(x, out, states, final)
        assert torch.equal(out, expected[0])
        assert torch.equal(final, expected[1])
    for copy, tensor in zip(copies, (*x.token_tensors, x.A_log, x.dt_bias, x.cu_seqlens), strict=True):
        assert torch.equal(copy, tensor)


# ------------------------------------------------------------------------------------------------ as servers call it


def test_as_sglang_calls_it():
    """States gathered from the pool and scattered back, positional arguments, beta as the logit of its sigmoid, A_log
    as the module holds it. Then the same without gather and scatter: state_indices, the same bits."""
    H = 4
    inputs = random_inputs(T=200, H=H, HV=H, cu_seqlens=[0, 64, 200], initial_state=True)
    activated = inputs.beta.float().sigmoid()
    inputs.beta = torch.logit(activated, eps=1e-6).to(BF16)
    expected = reference(inputs)
    x = inputs.to("cuda")
    A_log = x.A_log.reshape(1, 1, H, 1)
    cache_indices = torch.tensor([6, 3], dtype=torch.int32, device="cuda")
    ssm_states = filled_like(torch.empty(8, H, 128, 128, device="cuda"))
    ssm_states[cache_indices] = v_first(x.initial_state)
    pool = ssm_states.clone()
    with torch.inference_mode():
        state = ssm_states[cache_indices].contiguous()
        out, final = torch.empty_like(x.v), torch.empty_like(state)
        flash_kda.fwd(
            x.q, x.k, x.v, x.g, x.beta, SCALE, out, A_log, x.dt_bias, -5.0, state, final, x.cu_seqlens,
        )  # fmt: skip
        ssm_states[cache_indices] = final
        in_place = torch.empty_like(x.v)
        flash_kda.fwd(
            x.q, x.k, x.v, x.g, x.beta, SCALE, in_place, A_log, x.dt_bias, -5.0, pool, pool, x.cu_seqlens,
            state_indices=cache_indices,
        )  # fmt: skip
    assert relative_rms(out, expected.o) <= OUT_BAR["cuda"][BF16]
    assert relative_rms(ssm_states[cache_indices].mT, expected.final_state) <= STATE_BAR["cuda"][FP32]
    assert torch.equal(in_place, out)
    assert torch.equal(pool.nan_to_num(), ssm_states.nan_to_num())


@pytest.mark.parametrize("state_dtype", [BF16, FP32])
def test_as_vllm_calls_it(state_dtype):
    """int32 cu_seqlens, beta a slice with rows 6288 apart, gathered states, two checkpoints a sequence, a workspace
    sized for the largest batch, under inference_mode."""
    H = 12
    inputs = random_inputs(T=130, H=H, HV=H, cu_seqlens=[0, 50, 130], initial_state=True)
    inputs.initial_state = inputs.initial_state.to(state_dtype)
    inputs.initial_state[1] = 0.0  # a fresh sequence
    expected = reference(inputs)
    x = inputs.to("cuda")
    wide = filled_like(torch.empty(1, 130, 6288, dtype=BF16, device="cuda"))
    wide[..., 6144 : 6144 + H] = x.beta
    with torch.inference_mode():
        beta = wide[..., 6144 : 6144 + H]
        assert beta.stride() == (130 * 6288, 6288, 1)
        initial = v_first(x.initial_state)
        out, final = torch.empty_like(x.v), torch.empty_like(initial)
        checkpoints = torch.full((2, 2, H, 128, 128), 7.0, device="cuda")
        offsets = torch.tensor([[16, 48], [64, -1]], dtype=torch.int32, device="cuda")
        workspace = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        flash_kda.fwd(
            x.q, x.k, x.v, x.g, beta, SCALE, out, x.A_log, x.dt_bias, -5.0, initial, final, x.cu_seqlens.int(),
            checkpoints=checkpoints, checkpoint_offsets=offsets, workspace=workspace,
        )  # fmt: skip
    assert relative_rms(out, expected.o) <= OUT_BAR["cuda"][BF16]
    assert relative_rms(final.mT, expected.final_state) <= STATE_BAR["cuda"][state_dtype]
    for n, p, tokens in ((0, 0, 16), (0, 1, 48), (1, 0, 64)):
        assert relative_rms(checkpoints[n, p].mT, expected.states[n][tokens]) <= STATE_BAR["cuda"][FP32]
    assert (checkpoints[1, 1] == 7.0).all()


# ------------------------------------------------------------------------------------------------------- bad input


def test_cuda_is_the_backend_of_cuda_tensors():
    found = {backend.name: backend for backend in flash_kda.backends()}
    assert found["cuda"].device == "cuda"
    assert {"gate-bounded", "packed", "pool", "checkpoints", "K=V=128"} <= set(found["cuda"].features)


def sliced(tensor, elements):
    """The same values, beginning so many elements past a multiple of 16 bytes."""
    memory = torch.empty(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
    memory[elements:] = tensor.flatten()
    return memory[elements:].view(tensor.shape)


@pytest.mark.parametrize(
    "name, change, error, says",
    [
        ("k", lambda t: t.cpu(), ValueError, "is on cpu, needs cuda:0, the device of q"),
        ("A_log", lambda t: t.cpu(), ValueError, "is on cpu, needs cuda:0"),
        ("cu_seqlens", lambda t: t.cpu(), ValueError, "is on cpu, needs cuda:0"),
        ("initial_state", lambda t: t.cpu(), ValueError, "is on cpu, needs cuda:0"),
        ("state_indices", lambda t: t.cpu(), ValueError, "is on cpu, needs cuda:0"),
        ("checkpoint_offsets", lambda t: t.cpu(), ValueError, "is on cpu, needs cuda:0"),
        ("workspace", lambda t: t.cpu(), ValueError, "is on another device than q"),
        ("workspace", lambda t: t[:1000], ValueError, r"got \d+ bytes, needs \d+"),
        ("q", lambda t: sliced(t, 4), ValueError, "needs 16-byte alignment"),
        ("dt_bias", lambda t: sliced(t, 1), ValueError, "needs 16-byte alignment"),
        ("final_state", lambda t: sliced(t, 2), ValueError, "needs 16-byte alignment"),
        ("g", lambda t: t.new_zeros(1, 40, 4, 132)[..., :128], ValueError, "multiples of 16 bytes"),
        ("v", lambda t: t[..., :64], NotImplementedError, "K = 128, V = 64.*cuda misses.*supports: .*K=V=128 K=V=64"),
    ],
)
def test_refused_before_anything_is_written(name, change, error, says):
    x = random_inputs(T=40, cu_seqlens=[0, 20, 40]).to("cuda")
    call = dict(
        q=x.q, k=x.k, v=x.v, g=x.g, beta=x.beta, scale=0.1, out=torch.full_like(x.v, 7.0), A_log=x.A_log,
        dt_bias=x.dt_bias, lower_bound=-5.0, initial_state=torch.zeros(3, 4, 128, 128, device="cuda"),
        final_state=torch.full((3, 4, 128, 128), 7.0, device="cuda"), cu_seqlens=x.cu_seqlens,
        state_indices=torch.tensor([2, 0], device="cuda"),
        checkpoints=torch.full((2, 1, 4, 128, 128), 7.0, device="cuda"),
        checkpoint_offsets=torch.tensor([[16], [0]], device="cuda"),
        workspace=torch.empty(4 << 20, dtype=torch.uint8, device="cuda"),
    )  # fmt: skip
    flash_kda.fwd(**call)
    for output in ("out", "final_state", "checkpoints"):
        call[output].fill_(7.0)
    call[name] = change(call[name])
    if name == "v":
        call["out"] = call["out"][..., :64].contiguous()
        call["initial_state"], call["final_state"], call["checkpoints"] = (
            call[n][..., :64, :].contiguous() for n in ("initial_state", "final_state", "checkpoints")
        )
    before = {n: call[n].clone() for n in ("out", "final_state", "checkpoints")}
    with pytest.raises(error, match=says) as caught:
        flash_kda.fwd(**call)
    if error is ValueError:
        assert str(caught.value).startswith(f"{name}: ")
    torch.cuda.synchronize()
    assert all(torch.equal(call[n], value) for n, value in before.items())


def test_lengths_on_the_device_are_checked_when_asked(monkeypatch):
    """FLASH_KDA_DEBUG=1 or cu_seqlens_cpu; without, bad lengths stay inside the tensors."""
    x = random_inputs(T=40, cu_seqlens=[0, 20, 40]).to("cuda")
    guarded = torch.full((3, 40, 4, 128), 7.0, dtype=BF16, device="cuda")
    monkeypatch.delenv("FLASH_KDA_DEBUG", raising=False)
    for bad in ([0, 1 << 40, 40], [-3, 20, 40], [0, 30, 20], [7, 20, 1 << 60]):
        x.cu_seqlens.copy_(torch.tensor(bad))
        fwd(x, guarded[1:2])
        torch.cuda.synchronize()
        assert (guarded[[0, 2]] == 7.0).all()
        with pytest.raises(ValueError, match="^cu_seqlens_cpu: "):
            flash_kda.chunk_kda(*x.token_tensors, cu_seqlens=x.cu_seqlens, cu_seqlens_cpu=torch.tensor(bad))
    guarded.fill_(7.0)
    monkeypatch.setenv("FLASH_KDA_DEBUG", "1")
    for bad, says in (([0, 41, 40], "ascending"), ([1, 20, 40], "starts at 1"), ([0, 20, 39], "ends at 39")):
        x.cu_seqlens.copy_(torch.tensor(bad))
        with pytest.raises(ValueError, match=f"^cu_seqlens: .*{says}"):
            fwd(x, guarded[1:2])
        assert (guarded == 7.0).all()
    x.cu_seqlens.copy_(torch.tensor([0, 20, 40]))
    pool = torch.zeros(3, 4, 128, 128, device="cuda")
    with pytest.raises(ValueError, match="^state_indices: .*3 slots"):
        fwd(x, guarded[1:2], pool, pool, state_indices=torch.tensor([3, 0], device="cuda"))
    with pytest.raises(ValueError, match="^checkpoint_offsets: .*multiple of 16"):
        fwd(
            x, guarded[1:2], checkpoints=torch.zeros(2, 1, 4, 128, 128, device="cuda"),
            checkpoint_offsets=torch.tensor([[17], [0]], device="cuda"),
        )  # fmt: skip
    fwd(x, guarded[1:2])
    assert (guarded[[0, 2]] == 7.0).all() and guarded.isfinite().all()
