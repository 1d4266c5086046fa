"""Which leading tokens of a prompt belong to a registered system prompt."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from app.prompt.breakpoints import num_common
from app.prompt.chat_template import ChatTemplate
from app.prompt.sealing import PromptOrigin
from app.recent import Recent
from app.wire.errors import invalid_request
from app.wire.responses import PromptReference
from tenants.prompts.system_prompts import SystemPrompts
from tenants.prompts.variables import render, rendered_length, static_prefix, variables
from tenants.records import Principal, SystemPrompt
from tenants.store import StoreUnavailable

_log = logging.getLogger(__name__)
_CACHED_PREFIXES = 1024


@dataclass(frozen=True)
class SystemText:
    """A conversation's system message, and the registered prompt it comes from, if any.

    `owner` is whose prompt that is: the tenant's id, or its share group's `owner`. `variables` are
    what it was filled in with; a text that was only recognized has none.
    """

    text: str
    prompt: SystemPrompt | None = None
    owner: str = ""
    variables: dict[str, str] | None = None

    @property
    def origin(self) -> PromptOrigin | None:
        """Where the text can be found again, if it is a registered prompt's."""
        if self.prompt is None:
            return None
        return PromptOrigin(self.owner, self.prompt.name, self.prompt.version, self.variables)


class RegisteredPrompts:
    """Registered system prompts as token ids: a tenant's own, and behind them its share group's."""

    def __init__(self, prompts: SystemPrompts, template: ChatTemplate) -> None:
        self._prompts = prompts
        self._template = template
        self._prefixes = Recent[tuple[str, str], list[int]](_CACHED_PREFIXES)

    async def resolve(self, principal: Principal, reference: PromptReference) -> SystemText:
        """The text of a prompt that a request names.

        Raises `ApiError` for a prompt or version the tenant does not have, and for variables that
        are missing or unknown; `StoreUnavailable` while the store is down.
        """
        found = await self._find(principal, reference)
        if found is None:
            version = f" in version '{reference.version}'" if reference.version else ""
            message = f"There is no prompt '{reference.id}'{version}."
            raise invalid_request(message, "prompt.id", "prompt_not_found")
        prompt, owner = found
        values = reference.variables or {}
        expected = set(variables(prompt.text))
        for name in sorted(expected ^ values.keys()):
            complaint = "has no value" if name in expected else "is not in the prompt"
            raise invalid_request(f"The variable '{name}' {complaint}.", f"prompt.variables.{name}")
        return SystemText(self._render(prompt, values, "prompt.variables"), prompt, owner, values)

    async def named(
        self, principal: Principal, after: str | None, limit: int
    ) -> list[SystemPrompt]:
        """Those that a tenant may name, by name: `limit` behind `after`.

        Raises `StoreUnavailable`.
        """
        found: dict[str, SystemPrompt] = {}
        for owner in _owners(principal):
            for prompt in await self._prompts.list(owner, after, limit):
                found.setdefault(prompt.name, prompt)
        return [found[name] for name in sorted(found)][:limit]

    async def recall(self, principal: Principal, origin: PromptOrigin, param: str) -> SystemText:
        """The text that a conversation was under, as far as the tenant may still use its prompt.

        Raises `ApiError` naming `param`, and `StoreUnavailable`.
        """
        prompt = None
        if origin.owner in _owners(principal):
            prompt = await self._prompts.get(origin.owner, origin.name, origin.version)
        if prompt is None:
            message = f"There is no prompt '{origin.name}' in version '{origin.version}' any more."
            raise invalid_request(message, param, "prompt_not_found")
        values = origin.variables
        text = prompt.text if values is None else self._render(prompt, values, param)
        return SystemText(text, prompt, origin.owner, values)

    async def recognize(self, principal: Principal, text: str) -> SystemText:
        """An inline system message; it counts as the registered prompt with the same text.

        While the store is down no prompt is recognized: the request shares less, and is served.
        """
        try:
            for owner in _owners(principal):
                prompt = await self._prompts.find_by_text(owner, text)
                if prompt is not None:
                    return SystemText(text, prompt, owner)
        except StoreUnavailable:
            _log.warning("the store is down: a system message was not looked up")
        return SystemText(text)

    async def shared_tokens(self, system: SystemText | None, ids: Sequence[int]) -> int:
        """How many leading ids belong to the registered prompt: 0 for any other system message."""
        if system is None or system.prompt is None:
            return 0
        return num_common(await self.prefix_ids(system.owner, system.prompt), ids)

    def _render(self, prompt: SystemPrompt, values: dict[str, str], param: str) -> str:
        """Raises `ApiError` naming `param` before a text is made that no context holds."""
        self._template.check_characters(rendered_length(prompt.text, values), param)
        return render(prompt.text, values)

    async def _find(
        self, principal: Principal, reference: PromptReference
    ) -> tuple[SystemPrompt, str] | None:
        """The named prompt and its owner. A tenant's name hides the same name of its group."""
        for owner in _owners(principal):
            prompt = await self._prompts.get(owner, reference.id, reference.version)
            if prompt is not None:
                return prompt, owner
            if reference.version and await self._prompts.get(owner, reference.id) is not None:
                return None
        return None

    async def prefix_ids(self, owner: str, prompt: SystemPrompt) -> list[int]:
        """The ids that every conversation under `prompt` starts with."""
        # By text: a name and version may come back with another text after a deletion. By owner:
        # how fast a prefix is there must not tell what somebody else has registered.
        key = (owner, prompt.text)
        prefix = self._prefixes.use(key)
        if prefix is None:
            static = static_prefix(prompt.text)
            prefix = await self._template.prefix_ids(owner, static, whole=static == prompt.text)
            self._prefixes.put(key, prefix)
        return prefix


def _owners(principal: Principal) -> list[str]:
    """Whose prompts a tenant may use, in the order they are looked through."""
    group = principal.group
    return [principal.tenant.id] if group is None else [principal.tenant.id, group.owner]
