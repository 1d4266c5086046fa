"""Everything the engine can be told at start."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from engine.blocks.eviction_policy import Eviction

Quantization = Literal["auto", "none", "int8", "int4"]
KernelPaths = Literal["auto", "floats", "words", "tiles"]
Speculation = Literal["off", "lookup", "draft"]
LogFormat = Literal["auto", "json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

_AT_LEAST_ONE = (
    "block_size",
    "kept_bytes",
    "kv_memory_bytes",
    "max_context_tokens",
    "max_running_requests",
    "min_run_tokens",
    "speculation_tokens",
    "step_token_budget",
    "tensor_parallel",
    "threads",
)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine; `None` means "choose from the model and the machine".

    Raises `ValueError`, naming the field, for values that cannot work.
    """

    model_path: str
    """A Hugging Face model folder (`config.json` and safetensors), or one made for a GGUF file."""
    cache_dir: str | None = None
    """Where digests of weights are kept from one start to the next; `None`: nowhere."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    dtype: str = "auto"
    """`auto`, `float32`, `bfloat16` or `float16`; weights and KV cache alike."""
    kv_memory_bytes: int | None = None
    host_memory_bytes: int = 0
    """Host memory behind it, for evicted blocks and swapped requests; 0: none."""
    kept_dir: str | None = None
    """Where pinned and leased blocks are kept over a restart; `None`: nowhere."""
    kept_bytes: int = 1 << 30
    """Of all files there, at most."""
    kept_seconds: float = 30.0
    """Between two looks at what is to be kept and is not there yet."""
    kv_events: str | None = None
    """Where a PUB socket tells which blocks can be found (`engine.serve.kv_events`): `tcp://...` or
    `ipc://...`; `None`: nowhere."""
    kv_events_replay: str | None = None
    """Where a ROUTER socket sends them again, or what there is."""
    kv_events_topic: str = ""
    block_size: int = 16
    """Tokens of KV in a block."""
    max_context_tokens: int | None = None
    """Prompt plus output of one request, at most; `None`: the model's own limit."""
    step_token_budget: int | None = None
    """Tokens computed in one step, prefill and decode together; `None`: see
    `engine.model.step_size`."""
    itl_target_ms: float = 60.0
    """A step that decodes takes no more of prompts than lets it end in this time, or in twice what
    decoding alone takes; 0: as much as the budget holds."""
    max_running_requests: int | None = None
    """Sequences in one step; a request with several counts once for each. `None`: as above."""
    prefix_cache: bool = True
    eviction: Eviction = "arc"
    """Which cached block goes first: by adaptive replacement, or the least recently used one."""
    lease_share: float = 0.25
    """Part of the blocks that a tenant may lease which has no limit of its own."""
    fairness: Literal["vtc", "fcfs"] = "vtc"
    """Between tenants: by virtual token counters, or first come, first served."""
    recovery: Literal["auto", "swap", "recompute"] = "auto"
    """How a preempted request comes back: swapped, recomputed, or what is predicted cheaper."""
    min_run_tokens: int = 16
    """Tokens for which a preempted request that is back is not preempted again."""
    prompt_token_price: float = 1.0
    """What a computed prompt token adds to its tenant's counter; more than 0."""
    cached_token_price: float = 0.1
    """What a prompt token found in the cache adds."""
    output_token_price: float = 2.0
    """What a generated token adds; more than 0."""
    threads: int | None = None
    """CPU threads of the compute kernels; `None`: see `engine.system.threads.compute_threads`."""
    tensor_parallel: int = 1
    """Processes on this machine's CPU that compute the model together, each a part of every layer.
    They share the `threads`; `kv_memory_bytes` and `host_memory_bytes` are theirs together."""
    kernel_paths: KernelPaths = "auto"
    """How compiled kernels multiply on a CPU: in float32, by words of several elements, by matrix
    tiles (or what the machine has below that); `auto`: as is fastest for each kind of product."""
    speculation: Speculation = "off"
    """Whether several tokens of a sequence may be drawn in one step, behind guesses: `lookup` finds
    these in the conversation and in earlier answers of the same namespace, `draft` does that first
    and asks a small model where nothing is found. A service's own default is `lookup`."""
    draft_model_path: str | None = None
    """The folder of that model, which has the same vocabulary; its KV is in `kv_memory_bytes`."""
    speculation_tokens: int = 16
    """Guesses that are verified for a sequence in one step, at most."""
    quantize: Quantization = "auto"
    """Weights of matrix products: as the checkpoint has them (`auto`), all in `dtype` (`none`), or
    rounded to 8 or 4 bits. Those of 8 or 4 bits are for CPUs, and activations are rounded to 8."""
    kv_dtype: Literal["auto", "int8", "fp8"] = "auto"
    """Type of the KV cache; `auto`: that of the weights. fp8 is for GPUs."""
    prefix_grouping: bool = True
    """Whether attention reads blocks that sequences of a step share once for all of them."""
    batch_invariant: bool = False
    """Whether a token's result must not depend on what else is computed; then nothing is grouped.

    On a CPU it does not depend on how its prompt is cut into chunks either; prompts take longer. On
    a GPU a prompt token that is computed alone may be rounded differently than in a longer chunk.
    """
    log_format: LogFormat = "auto"
    """Of the lines that an engine's process logs; `auto`: text on a terminal, JSON elsewhere."""
    log_level: LogLevel = "info"
    """What these say at least."""
    core_dumps: bool = False
    """Whether its process may leave its memory in a core file, and show it to a debugger."""

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device: {self.device!r} is none of auto, cpu, cuda")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype: {self.dtype!r} is none of auto, float32, bfloat16, float16")
        if self.fairness not in ("vtc", "fcfs"):
            raise ValueError(f"fairness: {self.fairness!r} is none of vtc, fcfs")
        if self.eviction not in get_args(Eviction):
            raise ValueError(f"eviction: {self.eviction!r} is none of arc, lru")
        if self.recovery not in ("auto", "swap", "recompute"):
            raise ValueError(f"recovery: {self.recovery!r} is none of auto, swap, recompute")
        if self.quantize not in get_args(Quantization):
            raise ValueError(f"quantize: {self.quantize!r} is none of auto, none, int8, int4")
        if self.kernel_paths not in get_args(KernelPaths):
            raise ValueError(
                f"kernel_paths: {self.kernel_paths!r} is none of auto, floats, words, tiles"
            )
        if self.speculation not in get_args(Speculation):
            raise ValueError(f"speculation: {self.speculation!r} is none of off, lookup, draft")
        if self.log_format not in get_args(LogFormat):
            raise ValueError(f"log_format: {self.log_format!r} is none of auto, json, text")
        if self.log_level not in get_args(LogLevel):
            raise ValueError(
                f"log_level: {self.log_level!r} is none of debug, info, warning, error"
            )
        if (self.speculation == "draft") != (self.draft_model_path is not None):
            raise ValueError("draft_model_path: goes with speculation draft, and that with it")
        if self.tensor_parallel > 1 and self.kept_dir is not None:
            raise ValueError("kept_dir: blocks are not kept on disk with tensor_parallel")
        if self.kv_dtype not in ("auto", "int8", "fp8"):
            raise ValueError(f"kv_dtype: {self.kv_dtype!r} is none of auto, int8, fp8")
        if not 0 <= self.itl_target_ms < math.inf:
            raise ValueError("itl_target_ms: must not be negative")
        if not 0 <= self.lease_share <= 1:
            raise ValueError("lease_share: must be 0 ... 1")
        if self.host_memory_bytes < 0:
            raise ValueError("host_memory_bytes: must not be negative")
        for name in ("kept_seconds", "prompt_token_price", "output_token_price"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be more than 0")
        if not 0 <= self.cached_token_price < math.inf:
            raise ValueError("cached_token_price: must not be negative")
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1")
        for name in ("kv_events", "kv_events_replay"):
            value = getattr(self, name)
            if value is not None and not value.startswith(("tcp://", "ipc://")):
                raise ValueError(f"{name}: {value!r} begins with none of tcp://, ipc://")
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ValueError("kv_events_replay: goes with kv_events")
        budget, running = self.step_token_budget, self.max_running_requests
        if budget is not None and running is not None and running > budget:
            raise ValueError(
                "step_token_budget: must be at least max_running_requests, "
                "so that every running request can decode in every step"
            )
