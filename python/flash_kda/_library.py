"""Loads the shared objects, registers the fake implementations and turns failures into Python's error types."""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

_OBJECT = Path(__file__).parent / "_C.so"
if not _OBJECT.is_file():
    raise ImportError(
        f"flash_kda: {_OBJECT} is missing. Is this a source tree? Install the package (pip install .) and import it "
        "from another directory."
    )
torch.ops.load_library(os.fspath(_OBJECT))
_ops = torch.ops.flash_kda


class Gate(enum.IntEnum):
    """fkda_gate of flashkda.h."""

    BOUNDED = 0
    SOFTPLUS = 1
    LOG = 2


class Beta(enum.IntEnum):
    """fkda_beta of flashkda.h."""

    SIGMOID = 0
    TWICE_SIGMOID = 1
    ACTIVATED = 2


class StateLayout(enum.IntEnum):
    """fkda_state_layout of flashkda.h."""

    V_FIRST = 0
    K_FIRST = 1


class Split(enum.IntEnum):
    """fkda_split of flashkda.h."""

    AUTO = 0
    EXACT = 1
    NEVER = 2


# ------------------------------------------------------------------------------------------------------ operators

forward = _ops.forward.default
workspace_size = _ops.workspace_size.default
inspect_chunk = _ops.inspect_chunk.default


@torch.library.register_fake("flash_kda::forward")
def _(q: torch.Tensor, *arguments: object) -> None:
    """Everything that forward writes is the caller's: there is nothing to make. (Tensors on the meta device come here
    too, and a meta tensor among real ones must not turn the call into nothing.)"""
    for argument, tensor in zip(forward._schema.arguments[1:], arguments, strict=False):
        if isinstance(tensor, torch.Tensor) and tensor.device != q.device:
            raise ValueError(f"{argument.name}: is on {tensor.device}, needs {q.device}, the device of q")


# --------------------------------------------------------------------------------------------------------- errors

_PREFIX = "flash_kda: "
_ERROR_TYPES: dict[str, type[Exception]] = {
    "invalid argument": ValueError,
    "workspace too small": ValueError,
    "unsupported": NotImplementedError,
}

_Result = TypeVar("_Result")


def call(operator: Callable[..., _Result], *args: object) -> _Result:
    """operator(*args), with a failure of the core as ValueError (invalid argument, workspace too small),
    NotImplementedError (unsupported) or RuntimeError (device error, internal error).

    Inside torch.compile the operator is called as it is: there every failure is a RuntimeError with the same message.
    """
    if torch.compiler.is_compiling():
        return operator(*args)
    try:
        return operator(*args)
    except RuntimeError as error:
        text = str(error)
        if not text.startswith(_PREFIX):
            raise
        status, _, message = text.removeprefix(_PREFIX).partition(": ")
    raise _ERROR_TYPES.get(status, RuntimeError)(message)


def check_tensors(required: dict[str, object], optional: dict[str, object]) -> None:
    """What the core cannot see. Raises TypeError for what is not a tensor (optional ones may be None) and
    NotImplementedError if autograd would record the call."""
    for name, tensor in required.items():
        if tensor is None:
            raise TypeError(f"{name}: got None, needs a torch.Tensor")
    recorded = torch.is_grad_enabled()
    for name, tensor in itertools.chain(required.items(), optional.items()):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: got {type(tensor).__name__}, needs a torch.Tensor")
        if recorded and tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: requires grad, and flash_kda has no backward pass; call it under torch.no_grad() or "
                "torch.inference_mode()"
            )


# -------------------------------------------------------------------------------------------------------- queries


class Backend(NamedTuple):
    """One implementation of the operation.

    name:      what the environment variable FLASH_KDA_BACKEND takes to force it
    device:    "cpu" or "cuda", the tensors it computes on
    available: whether this machine can run it
    detail:    e.g. the instruction set chosen at run time; if not available, why
    features:  the names of what it supports
    """

    name: str
    device: str
    available: bool
    detail: str
    features: tuple[str, ...]


def backends() -> list[Backend]:
    """Every implementation in this build, in the order in which the automatic choice tries them."""
    found = []
    for index in range(_ops.implementation_count()):
        name, device_type, available, detail, features = _ops.implementation_info(index)
        found.append(Backend(name, ("cpu", "cuda")[device_type], available, detail, tuple(features.split())))
    return found


def version() -> str:
    return _ops.version()
