"""Items of requests as the messages that prompts are made of."""

from __future__ import annotations

from collections.abc import Sequence

from app.prompt.sealing import decrypt_thought, unseal
from app.prompt.sight import Sight
from app.prompt.system_prompts import RegisteredPrompts, SystemText
from app.request.request import FieldNames, Item, ItemName, SealedSummary, Thought
from app.wire.errors import invalid_request
from app.wire.functions import Message, pictures_in
from tenants.records import Principal, Tenant


class Telling:
    """Tells items as messages: opens what is sealed, and has pictures looked at."""

    def __init__(self, registered: RegisteredPrompts, sight: Sight) -> None:
        self._registered = registered
        self._sight = sight

    async def check(self, principal: Principal, items: Sequence[Item], field: str) -> None:
        """Raise `ApiError` naming one of a `field`'s items that no prompt can be made of.

        Raises `StoreUnavailable` too, for a summary that was made under a registered prompt.
        """
        self._sight.check(principal.tenant, pictures_in(said_in(items)))
        for index, item in enumerate(items):
            param = f"{field}[{index}].encrypted_content"
            if isinstance(item, Thought):
                _thought(principal.tenant, item, param)
            elif isinstance(item, SealedSummary):
                await self._unsealed(principal, item, param)

    async def messages(
        self,
        principal: Principal,
        items: Sequence[Item | ItemName],
        names: FieldNames,
        num_earlier: int = 0,
        num_pictures: int = 0,
        end_user: str | None = None,
        cache_key: str | None = None,
        *,
        unsaid: bool = False,
    ) -> tuple[list[Message], SystemText | None]:
        """Items as templates take them, and the registered prompt that the first summary was under.

        Summaries speak as the system. The first `num_earlier` items are the conversation's; so are
        `num_pictures` that are looked at no more. Of `end_user` and `cache_key` see
        `Sight.looked_at`. There may be no messages where they may be `unsaid`.
        """
        messages: list[Message] = []
        recalled: SystemText | None = None
        thought = ""
        for index, item in enumerate(items):
            assert not isinstance(item, ItemName), "names are looked up before"
            param = names.sealed.format(index - num_earlier)
            if index < num_earlier:
                param = "conversation"
            if isinstance(item, Thought):
                thought += _thought(principal.tenant, item, param)
                continue
            if not isinstance(item, SealedSummary):
                _say(messages, item, thought)
                thought = ""
                continue
            summary, system = await self._unsealed(principal, item, param)
            if system is not None:
                if recalled is None:
                    recalled = system
                elif system != recalled:
                    messages.append({"role": "system", "content": system.text})
            text = f"Summary of the conversation so far: {summary}"
            messages.append({"role": "system", "content": text})
        if not messages and not unsaid:
            raise invalid_request("Nothing is said that could be answered.", names.items)
        if any("pictures" in one for one in messages):
            messages = await self._sight.looked_at(
                principal.tenant, messages, num_pictures, end_user, cache_key
            )
        return messages, recalled

    async def _unsealed(
        self, principal: Principal, item: SealedSummary, param: str
    ) -> tuple[str, SystemText | None]:
        """What a summary says, and the registered prompt that it was made under.

        Raises `ApiError` naming `param`, and `StoreUnavailable`.
        """
        summary = unseal(principal.tenant, item.sealed)
        if summary is None:
            message = "This compaction item was not made by this service for this tenant."
            raise invalid_request(message, param)
        if summary.origin is None:
            return summary.text, None
        return summary.text, await self._registered.recall(principal, summary.origin, param)


def said_in(items: Sequence[Item | ItemName]) -> list[Message]:
    """The messages among items."""
    return [item for item in items if isinstance(item, dict)]


def _thought(tenant: Tenant, thought: Thought, param: str) -> str:
    """What was reasoned. Raises `ApiError` naming `param` where it was sealed by others, or for
    another tenant.
    """
    if thought.sealed is None:
        return thought.text
    text = decrypt_thought(tenant, thought.sealed)
    if text is None:
        message = "This content was not encrypted by this service for this tenant."
        raise invalid_request(message, param, "invalid_encrypted_content")
    return text


def _say(messages: list[Message], message: Message, thought: str) -> None:
    """Add a message; one of calls alone belongs to the answer that it stands behind.

    A `thought` before an assistant's is what it reasoned.
    """
    if thought and message["role"] == "assistant":
        message = {**message, "reasoning": thought}
    calls, before = message.get("calls"), messages[-1] if messages else None
    bare = calls and not message["content"] and "reasoning" not in message
    if calls and bare and before is not None and before["role"] == "assistant":
        messages[-1] = {**before, "calls": [*before.get("calls", ()), *calls]}
    else:
        messages.append(message)
