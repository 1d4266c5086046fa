"""Everything the engine can be told at start.

A field is declared here and nowhere else: with its unit (in its name), its default, its range and
what is said of it. A service's setting of the same name takes all of that over; `docs/settings.md`
and the help of `partywall serve` say it.
"""

# Annotations are not left as text here: a start would evaluate them twice.
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.blocks.eviction.policy import Eviction
from engine.declared import Amount, AutoCount, Count, Positive, Share, declared

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["auto", "none", "int8", "int4"]
KVDtype = Literal["auto", "int8", "fp8"]
Recovery = Literal["auto", "swap", "recompute"]
Policy = Literal["vtc", "fcfs"]
KernelPaths = Literal["auto", "floats", "words", "tiles"]
Speculation = Literal["off", "lookup", "draft"]
LogFormat = Literal["auto", "json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

_EVENT_ADDRESSES = ("tcp://", "ipc://")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one engine; `None` means "choose from the model and the machine".

    Raises `ValueError`, naming the field, for values that cannot work.
    """

    model_path: str
    """A Hugging Face model folder (`config.json` and safetensors), or one made for a GGUF file."""
    cache_dir: str | None = None
    """Where digests of weights are kept from one start to the next; `None`: nowhere."""
    core_dumps: Annotated[
        bool,
        "Let the service and its engine leave core files, and debuggers of their user attach: "
        "both show texts and secrets.",
    ] = False
    log_format: Annotated[
        LogFormat, "Lines of the log; auto is text on a terminal and JSON elsewhere."
    ] = "auto"
    log_level: Annotated[LogLevel, "What is logged at least; a line for every request is info."] = (
        "info"
    )
    device: Annotated[Device, "Where the model runs."] = "auto"
    dtype: Annotated[Dtype, "Type of weights and KV cache."] = "auto"
    quantize: Annotated[
        Quantization,
        "Weights of matrix products: as the checkpoint has them, all in dtype, or rounded to 8 or "
        "4 bits.",
    ] = "auto"
    """Those of 8 or 4 bits are for CPUs, and activations are rounded to 8."""
    kv_dtype: Annotated[
        KVDtype,
        "Type of the KV cache; auto is dtype. In 8 bits it holds up to twice the tokens; fp8 is "
        "for GPUs.",
    ] = "auto"
    kv_memory_bytes: Count | None = None
    host_memory_bytes: Annotated[int, Meta(ge=0)] = 0
    """Behind it, for evicted blocks and swapped requests; 0: none."""
    adapter_memory_bytes: Annotated[int, Meta(ge=0)] = 1 << 29
    """For adapters that are not in the KV memory, beside what requests wait for."""
    picture_memory_bytes: Annotated[int, Meta(ge=0)] = 1 << 28
    """For what was seen of pictures that requests show at a time, about."""
    kept_dir: str | None = None
    """Where pinned and leased blocks are kept over a restart; `None`: nowhere."""
    kept_bytes: Count = 1 << 30
    """Of all files there, at most."""
    kept_seconds: Annotated[
        Positive, "Between two looks for such blocks that are not on the disk yet."
    ] = 30.0
    kv_events: Annotated[
        str | None,
        "Where the engine tells routers which blocks it holds: KV events in vLLM's format on a "
        "ZeroMQ PUB socket, such as tcp://127.0.0.1:5557 or ipc:///run/kv-events.",
    ] = None
    kv_events_replay: Annotated[
        str | None,
        "Where it sends them again to who has missed some, such as tcp://127.0.0.1:5558.",
    ] = None
    """Of a ROUTER socket; see `engine.serve.kv_events`."""
    kv_events_topic: Annotated[str, "Topic of these events."] = ""
    block_size: Annotated[Count, "Tokens of KV in a block."] = 16
    max_context_tokens: Annotated[
        AutoCount,
        "Prompt plus output of one request; auto is the model's own limit, 32768 where it names "
        "none.",
    ] = None
    step_token_budget: Annotated[
        AutoCount,
        "Tokens computed in one engine step, at most; auto is 128 to 2048 on a CPU, as was "
        "measured to suit it, 1024 to 8192 on a GPU, by its processors.",
    ] = None
    """Of prefill and decode together; see `engine.model.step_size`."""
    itl_target_ms: Annotated[
        Amount,
        "Prompts may draw out the step of running streams to this, or to twice its own time if "
        "that is longer; 0 is no bound.",
    ] = 60.0
    max_running_requests: Annotated[
        AutoCount,
        "Requests in the engine's batch; one of several sequences counts for each. auto is 64 on "
        "a CPU, 64 to 512 on a GPU, by its memory.",
    ] = None
    prefix_cache: Annotated[bool, "Share KV blocks of equal prompt prefixes."] = True
    prefix_grouping: Annotated[
        bool, "Attention reads blocks that requests of a step share once for all."
    ] = True
    batch_invariant: Annotated[
        bool,
        "Results do not depend on what else is computed, bit for bit; prompts take a little "
        "longer, and on a GPU blocks are not grouped.",
    ] = False
    """On a CPU they do not depend on how a prompt is cut into chunks either. On a GPU a prompt
    token that is computed alone may be rounded differently than in a longer chunk.
    """
    lease_share: Annotated[
        Share,
        "Part of the KV blocks that a tenant's requests may ask to be kept, where it has no limit "
        "of its own (leased_blocks).",
    ] = 0.25
    eviction: Annotated[
        Eviction,
        "Which cached block goes first: by adaptive replacement (with recurrent states: what is "
        "worth least), or the least recently used one.",
    ] = "arc"
    recovery: Annotated[
        Recovery, "How a preempted request comes back; auto is what is predicted to be faster."
    ] = "auto"
    min_run_tokens: Annotated[
        Count, "Tokens for which a request that is back is not preempted again."
    ] = 16
    threads: Annotated[
        AutoCount,
        "CPU threads of the model; auto is one a core it may use, or two where a core runs two at "
        "once and that was faster at the first start.",
    ] = None
    """See `engine.system.threads.compute_threads`."""
    tensor_parallel: Annotated[
        Count,
        "Processes of this machine that compute the model together, on a CPU; each has a part of "
        "every layer and of threads and kv_memory. More than one needs kept_disk 0.",
    ] = 1
    """They share `host_memory_bytes`, too."""
    speculation: Annotated[
        Speculation,
        "Several tokens in one step where guesses come true: `lookup` finds them in the "
        "conversation and in earlier answers of the same namespace, `draft` also asks a small "
        "model.",
    ] = "off"
    """A service's own default is `lookup`."""
    draft_model_path: str | None = None
    """The folder of that model, which has the same vocabulary; its KV is in `kv_memory_bytes`."""
    speculation_tokens: Annotated[
        Count, "Guesses in one step for a sequence, at most; fewer where they do not pay."
    ] = 16
    kernel_paths: Annotated[
        KernelPaths,
        "How a CPU multiplies: in float32, by pairs or bytes, by matrix tiles; auto is what was "
        "fastest at the first start.",
    ] = "auto"
    """Where the machine has no tiles: what it has below them; fastest for each kind of product."""
    fairness: Annotated[
        Policy, "Who is served next: virtual token counters of tenants, or who came first."
    ] = "vtc"
    prompt_token_price: Annotated[
        Positive, "What a computed prompt token counts in a tenant's service."
    ] = 1.0
    cached_token_price: Annotated[Amount, "What one found in the cache counts."] = 0.1
    output_token_price: Annotated[Positive, "What an output token counts."] = 2.0

    def __post_init__(self) -> None:
        for name, field in declared(EngineConfig).items():
            field.check(name, getattr(self, name))
        if (self.speculation == "draft") != (self.draft_model_path is not None):
            raise ValueError("draft_model_path: goes with speculation draft, and that with it")
        if self.tensor_parallel > 1 and self.kept_dir is not None:
            raise ValueError("kept_dir: blocks are not kept on disk with tensor_parallel")
        for name in ("kv_events", "kv_events_replay"):
            address = getattr(self, name)
            if address is not None and not address.startswith(_EVENT_ADDRESSES):
                raise ValueError(f"{name}: {address!r} begins with none of tcp://, ipc://")
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ValueError("kv_events_replay: goes with kv_events")
        budget, running = self.step_token_budget, self.max_running_requests
        if budget is not None and running is not None and running > budget:
            # Every running request decodes in every step.
            raise ValueError("step_token_budget must be at least max_running_requests")
