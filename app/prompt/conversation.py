"""A request's conversation as token ids: a first turn whole, a later one behind the ids so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.generate.request import GenerationRequest, Item, SealedSummary
from app.prompt.history import Turn
from app.prompt.sealing import unseal
from app.prompt.system_prompts import RegisteredPrompts, SystemText
from app.prompt.template import ChatTemplate, Message
from app.wire.errors import invalid_request
from tenants.records import Principal, Tenant


@dataclass(frozen=True)
class Prompt:
    """The prompt of one turn: ids, how many of them are a registered prompt's, and the system text.

    `shared_owner` is whose prompt that is, see `SystemText`, and `end_user` whom the conversation
    belongs to.
    """

    ids: list[int]
    shared_tokens: int = 0
    shared_owner: str = ""
    system: str | None = None
    end_user: str | None = None


class PromptBuilder:
    """Builds the prompts of turns."""

    def __init__(self, template: ChatTemplate, registered: RegisteredPrompts) -> None:
        self._template = template
        self._registered = registered

    async def first_turn(self, principal: Principal, request: GenerationRequest) -> Prompt:
        """The prompt of a conversation that begins.

        The system text is the registered prompt that the request names, or its instructions, or
        else the leading system message. Raises `ApiError` naming the field at fault.
        """
        messages = _messages(principal.tenant, request.items)
        system: SystemText | None = None
        if request.prompt is not None:
            if request.instructions is not None:
                raise invalid_request("'instructions' cannot go with 'prompt'.", "instructions")
            system = await self._registered.resolve(principal, request.prompt)
            messages.insert(0, {"role": "system", "content": system.text})
        else:
            if request.instructions is not None:
                messages.insert(0, {"role": "system", "content": request.instructions})
            if messages[0]["role"] == "system":
                system = await self._registered.recognize(principal, messages[0]["content"])
        ids = await self._template.prompt_ids(messages, request.names.items)
        end_user = request.sampling.end_user
        if system is None:
            return Prompt(ids, end_user=end_user)
        shared = await self._registered.shared_tokens(system, ids)
        return Prompt(ids, shared, system.owner, system.text, end_user)

    async def next_turn(
        self, principal: Principal, request: GenerationRequest, previous: Turn
    ) -> Prompt:
        """The prompt of a later turn: the ids so far, and the new messages after them.

        The conversation keeps its system text. `instructions` or `prompt` may be repeated; others
        would rewrite the start of the ids, and are refused by name.
        """
        system, param = request.instructions, "instructions"
        if request.prompt is not None:
            named = await self._registered.resolve(principal, request.prompt)
            system, param = named.text, "prompt"
        if system is not None and system != previous.system:
            message = (
                "A continued conversation keeps its system text; start a new one to change it."
            )
            raise invalid_request(message, param)
        messages = _messages(principal.tenant, request.items)
        ids = await self._template.continuation_ids(previous.ids, messages, request.names.items)
        return Prompt(
            ids,
            previous.shared_tokens,
            previous.shared_owner,
            previous.system,
            request.sampling.end_user or previous.end_user,
        )


def _messages(tenant: Tenant, items: Sequence[Item]) -> list[Message]:
    """Items as templates take them; summaries speak as the system."""
    return [
        _summary(tenant, item, f"input[{index}]") if isinstance(item, SealedSummary) else item
        for index, item in enumerate(items)
    ]


def _summary(tenant: Tenant, item: SealedSummary, param: str) -> Message:
    summary = unseal(tenant, item.sealed)
    if summary is None:
        message = "This compaction item was not made by this service for this tenant."
        raise invalid_request(message, f"{param}.encrypted_content")
    return {"role": "system", "content": f"Summary of the conversation so far: {summary}"}
