"""An engine without a model: it answers "You said: ..." and hashes prompts like the real one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import takewhile

from msgspec import structs
from transformers import PreTrainedTokenizerBase

from engine.api import (
    AdapterState,
    BlockFate,
    ChainPage,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineUnavailable,
    PromptLogprobs,
    Roll,
    TokenDelta,
    TokenLogprobs,
)
from engine.blocks.hashing import Extras, block_hashes
from engine.client import FleetFigures, Source, bring_nothing
from engine.validation import check_request
from tests.app.scripted_stats import scripted_stats

BLOCK_SIZE = 16
SAVED_SECONDS = 0.001
"""By each token that is found."""
_LAST_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


class ScriptedEngine:
    """Set `hold_after` to pause every answer after that many tokens until `release()`.

    With `answers` each line of a request says its own; `logprobs` are those of their tokens.
    """

    hash_extras = b""
    max_running_sequences = 64
    has_grammars = True
    source: Source = staticmethod(bring_nothing)

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.requests: list[EngineRequest] = []
        self.ended: list[str] = []
        self.active: set[str] = set()
        self.most_active = 0
        self.down = False
        self.answer: str | None = None
        self.answers: list[str] = []
        self.adapted_answer: str | None = None
        """What it says with an adapter, if that shall be something else."""
        self.logprobs: list[float] = []
        self.hold_after: int | None = None
        self.trouble: str | None = None
        self.fleet: FleetFigures | None = None
        self.die_after: int | None = None
        self.death = "the engine died"
        self.token_seconds = 0.0
        self.holding: set[str] = set()
        self.starts = 1
        self.linears: dict[str, tuple[int, int]] = {}
        """Of the model: what adapters may change."""
        self.picture_token_id: int | None = None
        self.brought: list[tuple[bytes, list[bytes]]] = []
        """The pictures that it has asked for, which it does each time, by their names."""
        self._released = asyncio.Event()
        self._aborts: dict[str, asyncio.Event] = {}
        self.aborted_lines: list[tuple[str, int]] = []
        # Who computed each block, and what each pin holds.
        self.cached: dict[bytes, str] = {}
        self.known: dict[str, str] = {}
        """Who may have files, and under which secret, by what it was told last."""
        self.pins: dict[str, tuple[str, list[bytes]]] = {}
        self.forgotten: list[str] = []
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
            max_running_sequences=self.max_running_sequences,
            vocab_size=len(self.tokenizer),
            eos_token_ids=(self.eos,),
            hash_extras=self.hash_extras,
            has_grammars=self.has_grammars,
            linears=self.linears,
            picture_token_id=self.picture_token_id,
        )

    async def start(self) -> None: ...

    async def close(self) -> None:
        self.down = True
        for aborted in self._aborts.values():
            aborted.set()

    async def wait_started(self, starts: int) -> int:
        async with self._started:
            await self._started.wait_for(lambda: self.starts > starts)
            return self.starts

    async def restart(self) -> None:
        self.cached.clear()
        self.pins.clear()
        async with self._started:
            self.starts += 1
            self._started.notify_all()

    def release(self) -> None:
        self.hold_after = None
        self._released.set()
        self._released = asyncio.Event()

    async def abort(self, request_id: str, index: int | None = None) -> None:
        if request_id in self._aborts and index is None:
            self._aborts[request_id].set()
        elif request_id in self._aborts and index is not None:
            self.aborted_lines.append((request_id, index))

    async def unpin(self, pin: str) -> None:
        self.pins.pop(pin, None)

    async def forget_others(self, tenants: Mapping[str, str]) -> None:
        self.known = dict(tenants)

    async def keep_under(self, tenant: str, secret: str) -> None:
        self.known[tenant] = secret

    async def forget_tenant(self, tenant: str) -> None:
        self.forgotten.append(tenant)
        self.cached = {block: owner for block, owner in self.cached.items() if owner != tenant}
        self.pins = {pin: held for pin, held in self.pins.items() if held[0] != tenant}

    async def block_fates(self, hashes: Sequence[bytes]) -> list[BlockFate]:
        if self.down:
            raise EngineUnavailable("down")
        return [BlockFate("present" if one in self.cached else "never_seen") for one in hashes]

    async def chains(self, tenant: str, before: int | None = None) -> ChainPage:
        if self.down:
            raise EngineUnavailable("down")
        return ChainPage(chains=[])

    async def adapter_states(self, names: Sequence[bytes]) -> list[AdapterState | None]:
        if self.down:
            raise EngineUnavailable("down")
        return [self.adapter_state(name) for name in names]

    def adapter_state(self, name: bytes) -> AdapterState | None:
        """As if all adapters that requests have named were still on the device."""
        uses = sum(one.adapter is not None and one.adapter.name == name for one in self.requests)
        if not uses:
            return None
        return AdapterState(
            on_device=True,
            in_host=False,
            num_bytes=4096,
            uses=uses,
            idle_seconds=0.0,
            fetch_seconds=0.25,
            load_seconds=0.002,
        )

    async def wall(self, watcher: str, replica: int = 0) -> bytes:
        raise EngineUnavailable(f"no blocks to show {watcher} of {replica}")

    async def roll(self, replica: int = 0, cell: int | None = None) -> Roll:
        if replica or cell:
            raise EngineError(f"replica: there is no number {replica}")
        return Roll(requests=[])

    async def unwatch(self, watcher: str) -> None:
        """Nobody watches."""

    async def stats(self) -> EngineStats:
        if self.down:
            raise EngineUnavailable("down")
        tenants = {one.request_id: one.tenant for one in self.requests}
        running = [tenants[request_id] for request_id in self.active]
        return scripted_stats(running, self.cached, self.pins)

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
        try:
            for use in request.pictures:
                pieces = [piece async for piece in self.source(use.name)]
                self.brought.append((use.name, pieces))
        except EngineError as error:
            yield TokenDelta(request_id=rid, finish_reason="error", error=str(error))
            return
        if request.pin is not None:
            hashes = block_hashes(request.prompt, BLOCK_SIZE, request.namespaces)
            most = request.share.max_pinned_blocks
            if most is not None and len(hashes) > most:
                yield TokenDelta(request_id=rid, finish_reason="error", error="no room for the pin")
                return
            self.pins[request.pin] = (request.tenant, hashes)
        if sampling.prompt_logprobs is not None:
            for part in self._scores(request):
                await asyncio.sleep(0)
                yield part
        if sampling.max_tokens == 0:
            yield TokenDelta(request_id=rid, finish_reason="length", cached_tokens=cached)
            return
        if request.beam is not None:
            hypotheses = self._search(request, cached)
            for length in range(1, max(len(found.token_ids) for found in hypotheses) + 1):
                await self._pause(rid, length - 1)
                ended = self._ended(request, length - 1)
                if ended is not None:
                    for index in range(request.num_outputs):
                        yield structs.replace(ended, index=index)
                    return
                searched = length * request.beam.num_beams
                yield TokenDelta(request_id=rid, searched_tokens=searched, cached_tokens=cached)
            for found in hypotheses:
                yield found
            return
        written = max(0, len(request.prompt) // BLOCK_SIZE * BLOCK_SIZE - cached)
        lines = dict(enumerate(self._scripts(request)))
        for position in range(len(request.generated_by(0)), sampling.max_tokens):
            await self._pause(rid, position)
            ended = self._ended(request, position)
            for index, script in list(lines.items()):
                delta = self._next(request, index, script, position)
                if ended is not None:
                    delta = structs.replace(ended, index=index)
                elif (rid, index) in self.aborted_lines:
                    delta = TokenDelta(request_id=rid, index=index, finish_reason="aborted")
                if delta.finish_reason is not None:
                    del lines[index]
                    self._register(request, [*request.prompt, *script[: position + 1]])
                yield structs.replace(
                    delta,
                    cached_tokens=cached,
                    cache_write_tokens=written,
                    saved_seconds=cached * SAVED_SECONDS,
                )
            if not lines:
                return

    def _scores(self, request: EngineRequest) -> list[TokenDelta]:
        """Of a prompt, a delta for every hundred tokens."""
        count, (_, *tokens) = request.sampling.prompt_logprobs or 0, request.prompt
        top = [(other, -0.25 * rank) for rank, other in enumerate(range(count), 1)]
        scores = [PromptLogprobs(-0.5, top, 21) for _ in tokens]
        return [
            TokenDelta(request_id=request.request_id, prompt_logprobs=scores[start : start + 100])
            for start in range(0, len(scores), 100)
        ]

    def _ended(self, request: EngineRequest, position: int) -> TokenDelta | None:
        """How the whole request ends here, if it does."""
        rid = request.request_id
        if self._aborts[rid].is_set():
            return TokenDelta(request_id=rid, finish_reason="aborted")
        if self.die_after == position:
            return TokenDelta(request_id=rid, finish_reason="error", error=self.death)
        return None

    def _next(
        self, request: EngineRequest, index: int, script: list[int], position: int
    ) -> TokenDelta:
        sampling = request.sampling
        token = script[position] if position < len(script) else ord(".") - 33
        stop = token in sampling.stop_token_ids
        last = position == sampling.max_tokens - 1
        logprobs = None
        if sampling.logprobs is not None:
            logprob = self.logprobs[index] if self.logprobs else -0.5
            top = [(token, logprob), *((other, -1.5) for other in range(19))][: sampling.logprobs]
            logprobs = [TokenLogprobs(logprob, top)]
        return TokenDelta(
            request_id=request.request_id,
            index=index,
            token_ids=[token],
            logprobs=logprobs,
            finish_reason="stop" if stop else "length" if last else None,
        )

    def _search(self, request: EngineRequest, cached: int) -> list[TokenDelta]:
        """Hypotheses, whole and with scores that fall."""
        longest = request.sampling.max_tokens
        return [
            TokenDelta(
                request_id=request.request_id,
                index=index,
                token_ids=script[:longest],
                finish_reason="length" if longest < len(script) else "stop",
                score=-0.25 * (index + 1),
                cached_tokens=cached,
            )
            for index, script in enumerate(self._scripts(request))
        ]

    def _look_up(self, request: EngineRequest) -> int:
        hits = len(list(takewhile(self.cached.__contains__, _hashes(request, request.prompt))))
        self._register(request, request.prompt)
        return min(hits * BLOCK_SIZE, len(request.prompt) - 1)

    def _register(self, request: EngineRequest, token_ids: list[int]) -> None:
        for block in _hashes(request, token_ids):
            self.cached.setdefault(block, request.tenant)

    def _scripts(self, request: EngineRequest) -> list[list[int]]:
        """What each line of the answer will be."""
        found = _LAST_USER.findall(self.tokenizer.decode(request.prompt))
        text = f"You said: {found[-1] if found else ''}" if self.answer is None else self.answer
        if request.adapter is not None and self.adapted_answer is not None:
            text = self.adapted_answer
        texts = self.answers[: request.num_outputs] or [text] * request.num_outputs
        return [
            [*self.tokenizer(one, add_special_tokens=False)["input_ids"], self.eos] for one in texts
        ]

    async def _pause(self, request_id: str, index: int) -> None:
        if self.hold_after is None or index < self.hold_after:
            await asyncio.sleep(self.token_seconds)
            return
        released = asyncio.ensure_future(self._released.wait())
        aborted = asyncio.ensure_future(self._aborts[request_id].wait())
        self.holding.add(request_id)
        try:
            await asyncio.wait({released, aborted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.holding.remove(request_id)
            released.cancel()
            aborted.cancel()


def _hashes(request: EngineRequest, token_ids: list[int]) -> list[bytes]:
    findable, extras = token_ids[: request.cache.up_to], Extras(pictures=request.pictures)
    return block_hashes(findable, BLOCK_SIZE, request.namespaces, extras)
