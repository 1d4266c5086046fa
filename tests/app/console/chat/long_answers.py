"""Answers that are long, each of one kind, and what streaming or opening them costs a page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from itertools import count
from typing import Any, Final

from playwright.async_api import Page

NUM_BYTES: Final = 55_000
_TEXT: Final = (
    "The quick **brown** fox jumps over a `lazy` dog, and [asks](https://example.org) *why*."
)
_PARTS: Final = {
    "mixed": f"## Part {{n}}\n\n{_TEXT}\n\n- one\n- two\n  - {_TEXT}\n\n```python\ndef f{{n}}(x):\n"
    f"    return x + {{n}}\n```\n\n| a | b |\n|---|--:|\n| 1 | {_TEXT} |\n\n> {_TEXT}\n\n",
    "code": "def f{n}(x: int) -> str:\n    return 'a text' + str(x + {n})  # because\n",
    "list": f"- item {{n}}: {_TEXT}\n",
    "table": "| {n} | **two** and `three` | 4 |\n",
    "paragraph": f"{_TEXT} ",
    "short lines": "{n}. item\n",
}
_BEGINNINGS: Final = {"code": "```python\n", "table": "| a | b | c |\n|:--|:-:|--:|\n"}
KINDS: Final = list(_PARTS)
_CATEGORIES: Final = "toplevel,devtools.timeline"
_TASKS: Final = ("RunTask", "ThreadControllerImpl::RunTask")
_STREAM: Final = """async ({ text, chunk }) => {
  const { line } = document.getElementById("view-chat");
  for (let at = 0; at < text.length; at += chunk) {
    line.hear({
      type: "response.output_text.delta", output_index: 0, stream_id: "chat-1",
      delta: text.slice(at, at + chunk),
    });
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
}"""


def long_answer(kind: str) -> str:
    """One of the kinds, as long as a model's longest."""
    text = _BEGINNINGS.get(kind, "")
    for number in count(1):
        text += _PARTS[kind].format(n=number)
        if len(text) > NUM_BYTES:
            return text
    raise AssertionError


async def stream(page: Page, text: str, num_chunks: int = 200) -> None:
    """Have the answer that runs say a text."""
    await page.evaluate(_STREAM, {"text": text, "chunk": -(-len(text) // num_chunks)})


async def longest_task(page: Page, work: Awaitable[None]) -> float:
    """Of the page's main thread meanwhile: milliseconds of the processor, however busy that is."""
    session = await page.context.new_cdp_session(page)
    events: list[dict[str, Any]] = []
    ended = asyncio.Event()
    session.on("Tracing.dataCollected", lambda told: events.extend(told["value"]))
    session.on("Tracing.tracingComplete", lambda _: ended.set())
    await session.send("Tracing.start", {"transferMode": "ReportEvents", "categories": _CATEGORIES})
    await work
    await session.send("Tracing.end")
    await ended.wait()
    laid_out = Counter((one["pid"], one["tid"]) for one in events if one["name"] == "Layout")
    ((thread, _),) = laid_out.most_common(1)
    tasks = [one for one in events if (one["pid"], one["tid"]) == thread and one["name"] in _TASKS]
    return max(float(one.get("tdur", 0)) for one in tasks) / 1000
