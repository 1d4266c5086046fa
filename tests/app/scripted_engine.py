"""An engine without a model: it answers "You said: ..." and hashes prompts like the real one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from transformers import PreTrainedTokenizerBase

from engine.admission import check_request
from engine.client import EngineUnavailable
from engine.hashing import block_hashes
from engine.request import EngineInfo, EngineRequest, EngineStats, TokenDelta, TokenLogprobs

BLOCK_SIZE = 16
_LAST_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


class ScriptedEngine:
    """Set `hold_after` to pause every answer after that many tokens until `release()`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.requests: list[EngineRequest] = []
        self.ended: list[str] = []
        self.active: set[str] = set()
        self.most_active = 0
        self.down = False
        self.answer: str | None = None
        self.hold_after: int | None = None
        self.die_after: int | None = None
        self.starts = 1
        self._released = asyncio.Event()
        self._aborts: dict[str, asyncio.Event] = {}
        self._cached: set[bytes] = set()
        self._started = asyncio.Condition()

    @property
    def info(self) -> EngineInfo:
        if self.down:
            raise EngineUnavailable("down")
        return EngineInfo(
            model="scripted",
            device="cpu",
            dtype="float32",
            block_size=BLOCK_SIZE,
            num_blocks=1024,
            max_context_tokens=2048,
            vocab_size=len(self.tokenizer),
            eos_token_ids=(self.eos,),
            hash_extras=b"",
        )

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def wait_started(self, starts: int) -> int:
        async with self._started:
            await self._started.wait_for(lambda: self.starts > starts)
            return self.starts

    async def restart(self) -> None:
        self._cached.clear()
        async with self._started:
            self.starts += 1
            self._started.notify_all()

    def release(self) -> None:
        self.hold_after = None
        self._released.set()

    async def abort(self, request_id: str) -> None:
        if request_id in self._aborts:
            self._aborts[request_id].set()

    async def stats(self) -> EngineStats:
        if self.down:
            raise EngineUnavailable("down")
        return EngineStats(
            running=len(self.active),
            waiting=0,
            blocks_total=1024,
            blocks_in_use=3,
            blocks_cached=len(self._cached),
            peak_blocks_in_use=7,
            steps=1,
            prompt_tokens=2,
            cached_tokens=3,
            output_tokens=4,
            preemptions=5,
            invariant_violations=0,
        )

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        if self.down:
            raise EngineUnavailable("down")
        check_request(request, self.info)
        self.requests.append(request)
        self.active.add(request.request_id)
        self.most_active = max(self.most_active, len(self.active))
        self._aborts[request.request_id] = asyncio.Event()
        try:
            async for delta in self._serve(request):
                yield delta
        finally:
            del self._aborts[request.request_id]
            self.active.remove(request.request_id)
            self.ended.append(request.request_id)

    async def _serve(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        cached = self._look_up(request)
        rid, sampling = request.request_id, request.sampling
        if sampling.max_tokens == 0:
            yield TokenDelta(request_id=rid, finish_reason="length", cached_tokens=cached)
            return
        script = self._script(request)
        for index in range(sampling.max_tokens):
            await self._pause(rid, index)
            if self._aborts[rid].is_set():
                yield TokenDelta(request_id=rid, finish_reason="aborted", cached_tokens=cached)
                return
            if self.die_after == index:
                yield TokenDelta(request_id=rid, finish_reason="error", error="the engine died")
                return
            token = script[index] if index < len(script) else ord(".") - 33
            stop = token in sampling.stop_token_ids
            last = index == sampling.max_tokens - 1
            logprobs = None
            if sampling.logprobs is not None:
                top = [(token, -0.5), *((other, -1.5) for other in range(19))][: sampling.logprobs]
                logprobs = [TokenLogprobs(-0.5, top)]
            if stop or last:
                everything = [*request.prompt, *script[: index + 1]]
                self._cached.update(block_hashes(everything, BLOCK_SIZE, request.namespaces))
            yield TokenDelta(
                request_id=rid,
                token_ids=[token],
                logprobs=logprobs,
                finish_reason="stop" if stop else "length" if last else None,
                cached_tokens=cached,
            )
            if stop:
                return

    def _look_up(self, request: EngineRequest) -> int:
        hashes = block_hashes(request.prompt, BLOCK_SIZE, request.namespaces)
        hits = 0
        while hits < len(hashes) and hashes[hits] in self._cached:
            hits += 1
        self._cached.update(hashes)
        return min(hits * BLOCK_SIZE, len(request.prompt) - 1)

    def _script(self, request: EngineRequest) -> list[int]:
        text = self.answer
        if text is None:
            found = _LAST_USER.findall(self.tokenizer.decode(request.prompt))
            text = f"You said: {found[-1] if found else ''}"
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.eos]

    async def _pause(self, request_id: str, index: int) -> None:
        if self.hold_after is None or index < self.hold_after:
            await asyncio.sleep(0)
            return
        released = asyncio.ensure_future(self._released.wait())
        aborted = asyncio.ensure_future(self._aborts[request_id].wait())
        try:
            await asyncio.wait({released, aborted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            released.cancel()
            aborted.cancel()
