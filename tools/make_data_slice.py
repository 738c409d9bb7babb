#!/usr/bin/env python3
"""Makes data/: the first tokens of the two full layer files, with the result recomputed in fp64. Needs NumPy only.

    tools/make_data_slice.py --source DIR [--tokens 117] [--output data]

DIR holds kda_{bounded,softplus}_layer2.safetensors and their *_expected files. The recurrence is causal, so the output
of the slice is a prefix of the full output: the recomputed one must agree with it, else the script fails. The state
after the slice stands in no file and is stored as computed here.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

GATES = ("bounded", "softplus")
# bfloat16 is kept as its 16 bits: NumPy has no such type.
DTYPES = {"F32": np.float32, "BF16": np.uint16, "U8": np.uint8}
PER_LAYER = ("A_log", "dt_bias")  # the other tensors have one row a token


def read(path):
    """Returns ({name: (dtype, array)}, metadata) of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["dtype"], np.frombuffer(raw[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"]))
    return tensors, metadata


def write(path, tensors, metadata):
    """Writes {name: (dtype, array)}, larger elements first so that every tensor is aligned."""
    header, blocks, offset = {"__metadata__": metadata}, [], 0
    for name, (dtype, array) in sorted(tensors.items(), key=lambda item: (-item[1][1].itemsize, item[0])):
        block = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(block)]}
        blocks.append(block)
        offset += len(block)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def to_fp64(tensor):
    dtype, array = tensor
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def recurrence(tensors, metadata):
    """The token recurrence in fp64, from a zero state: o [T,H,V] and the final state, v-first [H,V,K]."""
    q, k, v, g, beta = (to_fp64(tensors[name]) for name in ("q", "k", "v", "g", "beta"))
    rate, bias = np.exp(to_fp64(tensors["A_log"]))[:, None], to_fp64(tensors["dt_bias"])
    q /= np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6)
    k /= np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    if metadata["gate"] == "bounded":
        a = float(metadata["lower_bound"]) / (1 + np.exp(-rate * (g + bias)))
    else:
        a = -rate * np.logaddexp(0, g + bias)
    b = 1 / (1 + np.exp(-beta))
    state = np.zeros((q.shape[1], k.shape[2], v.shape[2]))  # [H,K,V]
    o = np.empty_like(v)
    for t in range(len(q)):
        state *= np.exp(a[t])[:, :, None]
        u = b[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += np.einsum("hk,hv->hkv", k[t], u)
        o[t] = float(metadata["scale"]) * np.einsum("hkv,hk->hv", state, q[t])
    return o, state.transpose(0, 2, 1)


def rms_error(x, reference):
    return np.sqrt(np.mean((x - reference) ** 2) / np.mean(reference**2))


def make_slice(source, output, gate, tokens):
    tensors, metadata = read(source / f"kda_{gate}_layer2.safetensors")
    expected, _ = read(source / f"kda_{gate}_layer2_expected.safetensors")
    part = {name: (d, a if name in PER_LAYER else a[:tokens]) for name, (d, a) in tensors.items()}
    o, state = recurrence(part, metadata)
    error = rms_error(o, to_fp64(expected["o"])[:tokens])
    if not error < 1e-6:
        sys.exit(f"{gate}: the recomputed output is {error:.1e} away from the full file's")
    write(output / f"kda_{gate}_slice.safetensors", part, metadata)
    result = {"o": ("F32", o.astype(np.float32)), "final_state": ("F32", state.astype(np.float32))}
    write(output / f"kda_{gate}_slice_expected.safetensors", result, metadata)
    print(f"{gate}: {tokens} tokens, output within {error:.1e} of the full file's")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="folder of the full layer files")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    parser.add_argument("--tokens", type=int, default=117, help="default: what fits 2 MB, tails in every chunk size")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for gate in GATES:
        make_slice(arguments.source, arguments.output, gate, arguments.tokens)


if __name__ == "__main__":
    main()
