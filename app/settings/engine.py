"""The model, the engine that computes it, and how many of these there are.

What is the engine's own is declared by `engine.config`.
"""

from __future__ import annotations

from pydantic import ByteSize, Field, model_validator

from app.settings.kinds import AutoSize, Count, Location, Seconds, Section, of_engine
from engine.blocks.eviction.policy import Eviction
from engine.config import (
    Device,
    Dtype,
    KernelPaths,
    KVDtype,
    Policy,
    Quantization,
    Recovery,
    Speculation,
)
from engine.model.weights import DEFAULT_MODEL, default_cache_dir


class EngineSettings(Section):
    """Of each engine; `None` means "choose from the model and the machine"."""

    model: str = Field(
        DEFAULT_MODEL, description="Model: name, Hugging Face folder, GGUF file or hub id."
    )
    cache_dir: Location = Field(
        default_factory=default_cache_dir,
        description="Where converted weights, and digests of weights, are kept.",
    )
    device: Device = of_engine("device")
    dtype: Dtype = of_engine("dtype")
    quantize: Quantization = of_engine("quantize")
    kv_dtype: KVDtype = of_engine("kv_dtype")
    kv_memory: AutoSize = Field(
        None,
        description="Memory of the KV cache, such as 2GiB; auto is a share of what is free, in a "
        "container of what it may use; on a GPU what weights, the largest step and CUDA graphs "
        "leave.",
    )
    host_memory: ByteSize = Field(
        ByteSize(0),
        description="Host memory behind it, such as 4GiB, for evicted blocks and swapped requests.",
    )
    adapter_memory: ByteSize = Field(
        ByteSize(512 * 1024**2),
        description="Memory for adapters of tenants beside those that are in the KV cache, in "
        "which those in use are; others are read from the store again.",
    )
    picture_memory: ByteSize = Field(
        ByteSize(256 * 1024**2),
        description="Memory for what the model has seen of pictures that requests show at a time: "
        "above it others wait. What no request shows lies in the KV cache, by its worth.",
    )
    kept_disk: ByteSize = Field(
        ByteSize(1024**3),
        description="Disk, in data_dir, for blocks that are found again after a restart: those of "
        "pinned prompts and those that tenants lease; 0 keeps none.",
    )
    kept_interval_seconds: float = of_engine("kept_seconds")
    kv_events: str | None = of_engine("kv_events")
    kv_events_replay: str | None = of_engine("kv_events_replay")
    kv_events_topic: str = of_engine("kv_events_topic")
    block_size: int = of_engine("block_size")
    max_context_tokens: int | None = of_engine("max_context_tokens")
    step_token_budget: int | None = of_engine("step_token_budget")
    itl_target_ms: float = of_engine("itl_target_ms")
    max_running_requests: int | None = of_engine("max_running_requests")
    prefix_cache: bool = of_engine("prefix_cache")
    prefix_grouping: bool = of_engine("prefix_grouping")
    batch_invariant: bool = of_engine("batch_invariant")
    lease_share: float = of_engine("lease_share")
    eviction: Eviction = of_engine("eviction")
    recovery: Recovery = of_engine("recovery")
    min_run_tokens: int = of_engine("min_run_tokens")
    threads: int | None = of_engine("threads")
    tensor_parallel: int = of_engine("tensor_parallel")
    cluster: bool = Field(
        False,
        description="Run engines as replicas on Ray Serve; needs the extra partywall[cluster] and "
        "kept_disk 0.",
    )
    replicas: Count = Field(1, description="Their number; each has threads and kv_memory.")
    max_replicas: Count | None = Field(
        None,
        description="Up to how many there are while they are needed; without it always replicas.",
    )
    replica_queue_seconds: Seconds = Field(
        2.0,
        description="What may wait at a replica on average, in seconds that its prompts take; with "
        "more, or with 85 % of KV memory in use, there is another replica.",
    )
    replica_idle_seconds: Seconds = Field(
        300.0, description="For how long fewer replicas must have been enough before one ends."
    )
    ray_address: str | None = Field(
        None,
        description="Ray cluster that they run on, such as 10.0.0.1:6379; without it one on this "
        "machine, for as long as the service runs.",
    )
    redeploy: bool = Field(
        False,
        description="Have these settings replace those of the cluster's replicas even if they were "
        "replaced by them: a service that is started again with old ones joins instead.",
    )
    speculation: Speculation = of_engine("speculation", default="lookup")
    draft_model: str | None = Field(
        None,
        description="The small model, which has the model's vocabulary: name, Hugging Face folder, "
        "GGUF file or hub id. Its KV cache is a part of kv_memory.",
    )
    speculation_tokens: int = of_engine("speculation_tokens")
    token_cadence_ms: float = Field(
        0.0,
        ge=0,
        le=10_000,
        allow_inf_nan=False,
        description="Least time between two tokens of a stream, so that nobody sees which guesses "
        "came true; 0 is none.",
    )
    kernel_paths: KernelPaths = of_engine("kernel_paths")
    rebuild_seconds: Seconds = Field(
        60.0, description="How long the streams of a dead engine wait until it is back."
    )
    engine_silence_seconds: Seconds = Field(
        120.0,
        description="An engine that is asked and says nothing for so long hangs, and is killed; "
        "more than any step takes.",
    )
    engine_loading_seconds: Seconds = Field(
        900.0,
        description="One that gets no further for so long while it loads is killed, too; it gets "
        "further with its libraries, weights, memory and graphs.",
    )
    fairness: Policy = of_engine("fairness")
    prompt_token_price: float = of_engine("prompt_token_price")
    cached_token_price: float = of_engine("cached_token_price")
    output_token_price: float = of_engine("output_token_price")

    @model_validator(mode="after")
    def _engine_fits(self) -> EngineSettings:
        budget, running = self.step_token_budget, self.max_running_requests
        if budget is not None and running is not None and running > budget:
            raise ValueError("step_token_budget must be at least max_running_requests")
        if (self.speculation == "draft") != (self.draft_model is not None):
            raise ValueError("draft_model goes with speculation draft, and that with a draft_model")
        if self.tensor_parallel > 1 and self.kept_disk:
            raise ValueError("kept_disk must be 0 with tensor_parallel: no part keeps its blocks")
        self._check_cluster()
        if self.recovery == "swap" and not self.host_memory:
            raise ValueError("recovery: swap needs host_memory")
        return self

    def _check_cluster(self) -> None:
        if not self.cluster:
            if self.replicas > 1 or self.max_replicas is not None or self.ray_address is not None:
                raise ValueError("replicas, max_replicas and ray_address go with cluster")
            if self.redeploy:
                raise ValueError("redeploy goes with cluster")
            return
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas must be at least replicas")
        if self.kept_disk:
            raise ValueError("kept_disk must be 0 with cluster: replicas keep no blocks on disk")
        if self.kv_events is not None:
            raise ValueError("kv_events goes without cluster: replicas tell their front doors")
        if max(self.replicas, self.max_replicas or 1) > 1 and self.kv_memory is None:
            raise ValueError("kv_memory must be given with replicas: one machine may have several")
