"""What a request has the chat template told besides messages and tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from app.wire.common import TEMPLATE_KWARGS, Effort
from app.wire.errors import invalid_request

SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call it whether to reason."""
_RESERVED: Final = frozenset(
    name
    for taking in (PreTrainedTokenizerBase.apply_chat_template, render_jinja_template)
    for name in inspect.signature(taking).parameters
) | {"messages"}
"""What is told already, or said to `transformers` instead of the template."""


@dataclass(frozen=True)
class TemplateOptions:
    """`effort` is how much to reason. `named` are variables by the template's own names: what it
    does not know of changes nothing, and what both tell of is as it is named.
    """

    effort: Effort | None = None
    named: Mapping[str, Any] = field(default_factory=dict)

    def given(
        self, tokenizer: PreTrainedTokenizerBase, mark: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """Those that are named, as the template may have them: marked, for people write them.

        Raises `ApiError` naming one that is not the request's to say.
        """
        for name, value in self.named.items():
            field = f"{TEMPLATE_KWARGS}.{name}"
            if name in _RESERVED or name in tokenizer.special_tokens_map:
                message = f"'{name}' is none of a chat template's variables that can be given."
                raise invalid_request(message, field)
            if name in SWITCHES and not isinstance(value, bool | None):
                raise invalid_request(f"'{name}' is true or false.", field, "invalid_type")
        return {name: mark(value) for name, value in self.named.items()}
