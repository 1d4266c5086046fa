"""Which leading tokens of a prompt belong to a registered system prompt."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from app.chat_template import ChatTemplate, common_prefix
from app.errors import invalid_request
from app.wire_responses import PromptReference
from tenants.records import SystemPrompt
from tenants.store import StoreUnavailable
from tenants.system_prompts import SystemPrompts, render, static_head, variables

_log = logging.getLogger(__name__)
_CACHED_HEADS = 1024


@dataclass(frozen=True)
class SystemText:
    """A conversation's system message, and the registered prompt it comes from, if any."""

    text: str
    prompt: SystemPrompt | None


class SystemHeads:
    """Registered system prompts as token ids."""

    def __init__(self, prompts: SystemPrompts, template: ChatTemplate) -> None:
        self._prompts = prompts
        self._template = template
        self._heads: OrderedDict[tuple[str, str], list[int]] = OrderedDict()

    async def resolve(self, tenant_id: str, reference: PromptReference) -> SystemText:
        """The text of a prompt that a request names.

        Raises `ApiError` for a prompt or version the tenant does not have, and for variables that
        are missing or unknown; `StoreUnavailable` while the store is down.
        """
        prompt = await self._prompts.get(tenant_id, reference.id, reference.version)
        if prompt is None:
            version = f" in version '{reference.version}'" if reference.version else ""
            message = f"There is no prompt '{reference.id}'{version}."
            raise invalid_request(message, "prompt.id", "prompt_not_found")
        values = reference.variables or {}
        expected = set(variables(prompt.text))
        for name in sorted(expected ^ values.keys()):
            complaint = "has no value" if name in expected else "is not in the prompt"
            raise invalid_request(f"The variable '{name}' {complaint}.", f"prompt.variables.{name}")
        return SystemText(render(prompt.text, values), prompt)

    async def recognize(self, tenant_id: str, text: str) -> SystemText:
        """An inline system message; it counts as the registered prompt with the same text.

        While the store is down no prompt is recognized: the request shares less, and is served.
        """
        try:
            return SystemText(text, await self._prompts.find_by_text(tenant_id, text))
        except StoreUnavailable:
            _log.warning("the store is down: a system message was not looked up")
            return SystemText(text, None)

    async def shared_tokens(
        self, tenant_id: str, system: SystemText | None, ids: Sequence[int]
    ) -> int:
        """How many leading ids belong to the registered prompt: 0 for any other system message."""
        if system is None or system.prompt is None:
            return 0
        return common_prefix(await self.head(tenant_id, system.prompt), ids)

    async def head(self, tenant_id: str, prompt: SystemPrompt) -> list[int]:
        """The ids that every conversation under `prompt` starts with."""
        # By text: a name and version may come back with another text after a deletion.
        key = (tenant_id, prompt.text)
        head = self._heads.get(key)
        if head is None:
            static = static_head(prompt.text)
            head = await self._template.head_ids(static, whole=static == prompt.text)
            self._heads[key] = head
            if len(self._heads) > _CACHED_HEADS:
                self._heads.popitem(last=False)
        self._heads.move_to_end(key)
        return head
