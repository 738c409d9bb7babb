#!/usr/bin/env python3
"""Host time of one call from Python on a problem too small to matter: the median of 1000 calls.

usage: host_cost.py [--device cuda|cpu] [--calls N] [--json]
"""

import argparse
import json
import statistics
import time

import torch

import flash_kda

SCALE = 128**-0.5


def median_us(call, calls: int, synchronize) -> float:
    """Median host time of a call in microseconds; the device's queue never fills up."""
    times = []
    for i in range(calls + 100):
        if i % 100 == 0:
            synchronize()
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    synchronize()
    return statistics.median(times[100:]) / 1e3


def cases(device: str):
    """(name, call) of each function on one sequence of one token and one head."""

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device=device).to(dtype)

    q, k, v, g = (random(1, 1, 1, 128) for _ in range(4))
    beta, A_log, dt_bias = random(1, 1, 1), random(1, dtype=torch.float32), random(1, 128, dtype=torch.float32)
    out, state = torch.empty_like(v), random(1, 1, 128, 128, dtype=torch.float32)
    cu_seqlens = torch.tensor([0, 1], device=device)
    fwd = (q, k, v, g, beta, SCALE, out, A_log, dt_bias, -5.0)
    gates = dict(A_log=A_log, dt_bias=dt_bias, lower_bound=-5.0, use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True)
    workspace = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    operator = (
        q, k, v, g, beta, A_log, dt_bias, None, None, None, None, out, None, None, None, workspace, False, SCALE, 0,
        -5.0, True, 0, 0, 64, False,
    )  # fmt: skip
    return {
        "torch.add(out=)": lambda: torch.add(q, k, out=out),
        "torch.ops.flash_kda.workspace_size": lambda: torch.ops.flash_kda.workspace_size.default(*operator),
        "torch.ops.flash_kda.forward": lambda: torch.ops.flash_kda.forward.default(*operator),
        "fwd": lambda: flash_kda.fwd(*fwd),
        "fwd, workspace given": lambda: flash_kda.fwd(*fwd, workspace=workspace),
        "fwd, states, packed": lambda: flash_kda.fwd(*fwd, state, state, cu_seqlens),
        "chunk_kda": lambda: flash_kda.chunk_kda(q, k, v, g, beta, **gates),
        "fused_recurrent_kda": lambda: flash_kda.fused_recurrent_kda(q, k, v, g, beta, **gates),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    with torch.inference_mode():
        results = {name: median_us(call, args.calls, synchronize) for name, call in cases(args.device).items()}
    if args.json:
        print(json.dumps(dict(device=args.device, torch=torch.__version__, host_us=results)))
        return
    for name, microseconds in results.items():
        print(f"{name:36s} {microseconds:7.2f} us")


if __name__ == "__main__":
    main()
