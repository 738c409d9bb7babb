"""The operation on torch tensors: fwd, chunk_kda, fused_recurrent_kda.

B batch, T tokens, N sequences, H q/k heads, HV value heads (a multiple of H), K key width, V value width. A packed
batch has B = 1 and cu_seqlens [N+1]; a dense batch is N = B sequences of T tokens.

Every function takes CPU tensors and, where there is a CUDA backend (see backends()), CUDA tensors: those on the current
stream of their device, without waiting for it. Inputs may be views with any token and head stride as long as the last
dimension is dense; nothing is copied. Results are bitwise repeatable. Errors, all raised before anything is written:

    ValueError            an argument breaks its contract; the message names it, what it got and what it needs
    TypeError             an argument is no tensor or number, or is unknown
    NotImplementedError   a valid problem that no backend computes, or gradients asked of these forward-only functions
    RuntimeError          the device reported an error; inside torch.compile also the first and the third
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from . import _library
from ._library import Beta, Gate, Split, StateLayout


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    out: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    state_indices: Tensor | None = None,
    checkpoints: Tensor | None = None,
    checkpoint_offsets: Tensor | None = None,
    workspace: Tensor | None = None,
    batch_invariant: bool = False,
    sequence_split: str = "auto",
) -> None:
    """Kimi Delta Attention with the bounded gate, into the caller's tensors.

    q and k are L2-normalised, beta goes through a sigmoid, the log decay is lower_bound * sigmoid(exp(A_log) * (g +
    dt_bias)), states are v-first. The first thirteen parameters, their order and meaning are FlashKDA's.

    Args:
        q, k: [B,T,H,K] bf16, fp16 or fp32.
        v: [B,T,HV,V], the dtype of q.
        g: [B,T,HV,K] bf16, fp16 or fp32; the raw gate.
        beta: [B,T,HV] bf16, fp16 or fp32; logits.
        scale: factor on q, usually 1/sqrt(K).
        out: [B,T,HV,V] bf16, fp16 or fp32; written. Rows outside every sequence are left alone.
        A_log: fp32, [HV] or any shape with HV elements; None: exp(A_log) = 1.
        dt_bias: fp32, [HV,K] or [HV*K]; None: 0.
        lower_bound: in [-5, 0).
        initial_state: [N,HV,V,K] fp32 or bf16; None: zero.
        final_state: [N,HV,V,K] fp32 or bf16, written; None: not wanted. May be initial_state itself.
        cu_seqlens: [N+1] int32 or int64, ascending from 0 to T; then B = 1.
        state_indices: [N] int32 or int64. initial_state and final_state are then a pool [slots,HV,V,K] with any slot
            stride, and sequence n uses slot state_indices[n]; a negative index starts from zero and stores nothing.
        checkpoints: [N,P,HV,V,K] fp32 or bf16, written: the state after checkpoint_offsets[n,p] tokens of sequence n.
        checkpoint_offsets: [N,P] int32 or int64: multiples of 16 in 0..length; negative: that slot is left alone.
        workspace: dense tensor of at least workspace_size(...) bytes on the device of q; None: allocated by torch.
        batch_invariant: the same bits for a sequence alone, in any batch, or resumed at a multiple of 64 tokens from
            an fp32 state. The CPU backends always grant it.
        sequence_split: whether a GPU cuts sequences into segments that run side by side. "auto": where it pays, and
            what provably shrinks to 2^-126 of its size before a segment's end is dropped. "exact": where it pays,
            nothing is dropped. "never". The CPU backends never do.
    """
    _library.call(
        _library.forward,
        *_fwd_arguments(
            q, k, v, g, beta, scale, out, A_log, dt_bias, lower_bound, initial_state, final_state, cu_seqlens,
            state_indices, checkpoints, checkpoint_offsets, workspace, batch_invariant, sequence_split,
        ),
    )  # fmt: skip


def workspace_size(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    out: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    state_indices: Tensor | None = None,
    checkpoints: Tensor | None = None,
    checkpoint_offsets: Tensor | None = None,
    batch_invariant: bool = False,
    sequence_split: str = "auto",
) -> int:
    """Bytes of workspace with which fwd, called with these arguments, allocates nothing. Contents never matter."""
    return _library.call(
        _library.workspace_size,
        *_fwd_arguments(
            q, k, v, g, beta, scale, out, A_log, dt_bias, lower_bound, initial_state, final_state, cu_seqlens,
            state_indices, checkpoints, checkpoint_offsets, None, batch_invariant, sequence_split,
        ),
    )  # fmt: skip


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    return_intermediate_states: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    state_indices: Tensor | None = None,
    batch_invariant: bool = False,
    sequence_split: str = "auto",
    transpose_state_layout: bool = False,
    disable_recompute: bool = False,
    cp_context: None = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """Kimi Delta Attention with the arguments of flash-linear-attention's chunk_kda, by its names.

    Args:
        q, k: [B,T,H,K] bf16, fp16 or fp32.
        v: [B,T,HV,V], the dtype of q.
        g: [B,T,HV,K] bf16, fp16 or fp32: the natural log of the decay (<= 0), or with use_gate_in_kernel the raw gate.
        beta: [B,T,HV] bf16, fp16 or fp32: activated, or with use_beta_sigmoid_in_kernel logits.
        scale: factor on q; None: 1/sqrt(K).
        initial_state: fp32 or bf16, [N,HV,K,V], or [N,HV,V,K] with state_v_first; None: zero.
        output_final_state: return the state after each sequence's last token.
        use_qk_l2norm_in_kernel: normalise q and k: x * rsqrt(sum(x^2) + 1e-6).
        use_gate_in_kernel: the log decay is lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) if lower_bound is given,
            else -exp(A_log) * softplus(g + dt_bias). Without it A_log, dt_bias and lower_bound have no effect.
        use_beta_sigmoid_in_kernel, allow_neg_eigval: sigmoid(beta); both: 2 * sigmoid(beta).
        safe_gate: with use_gate_in_kernel, lower_bound must be given. (fla's permission for a faster path; none is
            needed here.)
        lower_bound: in [-5, 0).
        state_v_first: every state is [V,K] instead of fla's [K,V]. transpose_state_layout is its older name.
        return_intermediate_states: also return h.
        cu_seqlens: [N+1] int32 or int64, ascending from 0 to T; then B = 1.
        cu_seqlens_cpu: the same values on the CPU; checked. With it, h of a packed batch needs no device read.
        A_log: fp32 with HV elements; may be None with lower_bound: exp(A_log) = 1.
        dt_bias: fp32 [HV,K] or [HV*K]; None: 0.
        chunk_size: tokens between the states in h, a multiple of 16.
        state_indices: as in fwd. initial_state is then the pool; with output_final_state it is updated in place and
            returned.
        batch_invariant, sequence_split: as in fwd.
        disable_recompute, use_graph, max_num_seqs: accepted, without effect: nothing is recomputed, and every call
            can be captured in a graph.
        cp_context: must be None; context parallelism is not implemented.

    Returns:
        o: [B,T,HV,V], the dtype of q.
        final_state: fp32 in the layout of initial_state, or None.
        h: only with return_intermediate_states: [B,NT,HV,K,V] or [B,NT,HV,V,K], the dtype of q: the state before every
            chunk_size tokens; NT = ceil(T / chunk_size), for a packed batch the sum of that over its sequences. Its
            size then depends on the values of cu_seqlens, so this one case is no single graph for torch.compile.
    """
    if cp_context is not None:
        raise NotImplementedError("cp_context: context parallelism is not implemented, needs None")
    if chunk_size <= 0 or chunk_size % 16 != 0:
        raise ValueError(f"chunk_size: got {chunk_size}, needs a positive multiple of 16")
    if use_gate_in_kernel and lower_bound is None:
        if safe_gate:
            raise ValueError("lower_bound: got None, safe_gate with use_gate_in_kernel needs a number in [-5, 0)")
        if A_log is None:
            raise ValueError("A_log: got None, use_gate_in_kernel needs it unless lower_bound is given")
    _check_cu_seqlens_cpu(cu_seqlens, cu_seqlens_cpu, q)

    return _functional(
        q, k, v, g, beta,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        qk_l2norm=use_qk_l2norm_in_kernel,
        gate_in_kernel=use_gate_in_kernel,
        lower_bound=lower_bound,
        beta_activation=_beta_activation(use_beta_sigmoid_in_kernel, allow_neg_eigval),
        state_layout=_state_layout(state_v_first, transpose_state_layout),
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        state_indices=state_indices,
        intermediate_every=chunk_size if return_intermediate_states else None,
        batch_invariant=batch_invariant,
        sequence_split=sequence_split,
    )  # fmt: skip


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    state_indices: Tensor | None = None,
    transpose_state_layout: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention for decoding: a few tokens a sequence, with flash-linear-attention's arguments.

    The parameters mean what they mean in chunk_kda, and so do the results (o, final_state): a sequence may be prefilled
    by one function and continued by the other.
    """
    if use_gate_in_kernel and lower_bound is None and A_log is None:
        raise ValueError("A_log: got None, use_gate_in_kernel needs it unless lower_bound is given")
    return _functional(
        q, k, v, g, beta,
        A_log=A_log,
        dt_bias=dt_bias,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        qk_l2norm=use_qk_l2norm_in_kernel,
        gate_in_kernel=use_gate_in_kernel,
        lower_bound=lower_bound,
        beta_activation=_beta_activation(use_beta_sigmoid_in_kernel, allow_neg_eigval),
        state_layout=_state_layout(state_v_first, transpose_state_layout),
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=None,
        state_indices=state_indices,
        intermediate_every=None,
        batch_invariant=False,
        sequence_split="auto",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- helpers


def _fwd_arguments(
    q, k, v, g, beta, scale, out, A_log, dt_bias, lower_bound, initial_state, final_state, cu_seqlens, state_indices,
    checkpoints, checkpoint_offsets, workspace, batch_invariant, sequence_split,
) -> tuple[object, ...]:  # fmt: skip
    """The operator's arguments for a call of fwd, checked as far as the core cannot."""
    _library.check_tensors(
        dict(q=q, k=k, v=v, g=g, beta=beta, out=out),
        dict(
            A_log=A_log, dt_bias=dt_bias, initial_state=initial_state, final_state=final_state, cu_seqlens=cu_seqlens,
            state_indices=state_indices, checkpoints=checkpoints, checkpoint_offsets=checkpoint_offsets,
            workspace=workspace,
        ),
    )  # fmt: skip
    in_place = final_state is not None and initial_state is final_state
    return (
        q, k, v, g, beta, A_log, dt_bias, cu_seqlens, None if in_place else initial_state, state_indices,
        checkpoint_offsets, out, final_state, checkpoints, None, workspace, in_place, number("scale", scale),
        Gate.BOUNDED, number("lower_bound", lower_bound), True, Beta.SIGMOID, StateLayout.V_FIRST, 64, batch_invariant,
        _split(sequence_split),
    )  # fmt: skip


def _functional(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    qk_l2norm: bool,
    gate_in_kernel: bool,
    lower_bound: float | None,
    beta_activation: Beta,
    state_layout: StateLayout,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    state_indices: Tensor | None,
    intermediate_every: int | None,
    batch_invariant: bool,
    sequence_split: str,
):
    """Allocates the results and runs the operator. intermediate_every None: no h."""
    _library.check_tensors(
        dict(q=q, k=k, v=v, g=g, beta=beta),
        dict(
            A_log=A_log, dt_bias=dt_bias, initial_state=initial_state, cu_seqlens=cu_seqlens,
            state_indices=state_indices,
        ),
    )  # fmt: skip
    for name, tensor in (("q", q), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name}: got shape {list(tensor.shape)}, needs 4 dimensions, [B,T,heads,width]")
    B, T, HV, V = v.shape
    N = B if cu_seqlens is None else max(cu_seqlens.numel() - 1, 0)
    matrix = (V, q.shape[3]) if state_layout == StateLayout.V_FIRST else (q.shape[3], V)

    if state_indices is not None and initial_state is None:
        raise ValueError("state_indices: needs initial_state, the pool that it points into")
    in_place = state_indices is not None and output_final_state
    if in_place:
        final_state = initial_state
    elif output_final_state:
        final_state = torch.empty((N, HV, *matrix), dtype=torch.float32, device=q.device)
    else:
        final_state = None

    h = None
    if intermediate_every is not None:
        lengths = None if cu_seqlens is None else (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).diff()
        count = _intermediate_count(T, N, lengths, intermediate_every)
        h = torch.empty((B, count, HV, *matrix), dtype=q.dtype, device=q.device)

    gate, lower_bound, A_log, dt_bias = select_gate(gate_in_kernel, lower_bound, A_log, dt_bias)
    out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    _library.call(
        _library.forward,
        q, k, v, g, beta, A_log, dt_bias, cu_seqlens, None if in_place else initial_state, state_indices, None, out,
        final_state, None, h, None, in_place, optional_scale(scale), gate, lower_bound, bool(qk_l2norm),
        beta_activation, state_layout, intermediate_every or 64, bool(batch_invariant),
        _split(sequence_split),
    )  # fmt: skip
    return (out, final_state) if h is None else (out, final_state, h)


def select_gate(
    gate_in_kernel: bool, lower_bound: float | None, A_log: Tensor | None, dt_bias: Tensor | None
) -> tuple[Gate, float, Tensor | None, Tensor | None]:
    """fla's rule for the gate: (gate, lower_bound, A_log, dt_bias) for the operator."""
    if not gate_in_kernel:
        return Gate.LOG, 0.0, None, None
    if lower_bound is None:
        return Gate.SOFTPLUS, 0.0, A_log, dt_bias
    return Gate.BOUNDED, number("lower_bound", lower_bound), A_log, dt_bias


def _beta_activation(sigmoid: bool, twice: bool) -> Beta:
    if twice and not sigmoid:
        raise ValueError("allow_neg_eigval: got True, needs use_beta_sigmoid_in_kernel=True")
    if not sigmoid:
        return Beta.ACTIVATED
    return Beta.TWICE_SIGMOID if twice else Beta.SIGMOID


def _split(name: str) -> Split:
    try:
        return Split[name.upper()]
    except (KeyError, AttributeError):
        raise ValueError(f'sequence_split: got {name!r}, needs "auto", "exact" or "never"') from None


def _state_layout(state_v_first: bool, transpose_state_layout: bool) -> StateLayout:
    return StateLayout.V_FIRST if state_v_first or transpose_state_layout else StateLayout.K_FIRST


def number(name: str, value: float) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{name}: got {type(value).__name__}, needs a number")
    return float(value)


def optional_scale(scale: float | None) -> float:
    """The operator's scale: NaN stands for the default 1/sqrt(K)."""
    return math.nan if scale is None else number("scale", scale)


def _intermediate_count(T: int, N: int, lengths: Tensor | None, every: int) -> int:
    """States before every `every` tokens: of one dense row, or of all sequences of a packed one."""
    if lengths is None:
        return -(-T // every)
    count = int(((lengths + (every - 1)) // every).sum())
    return max(0, min(count, T // every + N))  # bad lengths are the core's to refuse, not the allocator's


def _check_cu_seqlens_cpu(cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor | None, q: Tensor) -> None:
    """The promise of cu_seqlens_cpu is that of cu_seqlens, checked without touching the device."""
    if cu_seqlens_cpu is None:
        return
    if cu_seqlens is None:
        raise ValueError("cu_seqlens_cpu: given without cu_seqlens")
    if not isinstance(cu_seqlens_cpu, Tensor) or cu_seqlens_cpu.device.type != "cpu":
        raise TypeError("cu_seqlens_cpu: needs a tensor on the CPU")
    if cu_seqlens_cpu.shape != cu_seqlens.shape:
        raise ValueError(
            f"cu_seqlens_cpu: got shape {list(cu_seqlens_cpu.shape)}, needs that of cu_seqlens, "
            f"{list(cu_seqlens.shape)}"
        )
    if torch.compiler.is_compiling():
        return  # values are not known while a graph is traced
    values = cu_seqlens_cpu.tolist()
    if values != sorted(values) or values[:1] != [0] or values[-1:] != [q.shape[1]]:
        raise ValueError(f"cu_seqlens_cpu: got {values}, needs ascending values from 0 to T = {q.shape[1]}")
