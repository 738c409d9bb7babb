"""FlashKDA: Kimi Delta Attention for PyTorch. The operators are registered as torch.ops.flash_kda."""

from ._attention import chunk_kda, fused_recurrent_kda, fwd, workspace_size
from ._inspection import inspect_chunk, plot_chunk
from ._library import Backend, backends, version

__version__ = version()

__all__ = [
    "Backend",
    "__version__",
    "backends",
    "chunk_kda",
    "fused_recurrent_kda",
    "fwd",
    "inspect_chunk",
    "plot_chunk",
    "workspace_size",
]
