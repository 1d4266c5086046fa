"""`bench hybrid --parts served`: a random model of Qwen3.5-0.8B's shape on this CPU.

Turns of chats beside the same tokens without history, and beside a dense model's hits; then cold
prompts and streams over HTTP, beside the model's own modules and the `--peers`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from bench.common.figures import median_ratio, numbers_table
from bench.experts.load import STREAMS, Streams, running_modules
from bench.experts.shapes import write_folder
from bench.hybrid.served.shape import QWEN
from bench.hybrid.served.turns import Turn, chats, core_of, without_history
from bench.peers.peer import Peer, filled_in, read_peers
from bench.peers.servers import OURS, load_once, of_partywall, of_peer
from bench.registry import Result
from bench.service.loads import token_counter
from bench.service.loads.rounds import over_rounds
from engine.model.weights import DEFAULT_MODEL, resolve_model

_MODULES: Final = "transformers"
_COLD_TOKENS: Final = 1024
_OUTPUT_TOKENS: Final = 64
FIGURES: Final[Mapping[str, str]] = {
    "next_turn_ttft_ratio": "time to the first token of a turn behind others over that of as many "
    "new tokens without any history, medians",
    "hits_over_dense": "prompt tokens found on the same chats, over those of a dense model",
    "tokens_per_s_ratio": "tokens a second, prompts of 1,024 tokens included, over the best "
    "peer's: the worse of one stream and eight",
    "cold_ttft_ratio": "time to the first text of a cold prompt of 1,024 tokens over the best "
    "peer's",
    **{
        f"output_tokens_per_s_{streams}_SERVER": f"tokens a second, {streams} at once"
        for streams in STREAMS
    },
    "ttft_ms_STREAMS_SERVER": "time to the first text, median, ms",
    "itl_ms_STREAMS_SERVER": "time between two texts, median, ms",
    "foreign_load_percent_SERVER": "how busy others kept the machine in the worst round, %",
    "next_turn_ms": "time to the first token of a turn behind others, median, ms",
    "without_history_ms": "the same of as many new tokens alone",
}


def measured(weights: str, rounds: int, peers_file: Path | None, timeout_seconds: float) -> Result:
    """All of it, in one kind of weights."""
    peers = [] if peers_file is None else read_peers(peers_file)
    tokenizer_of = resolve_model(DEFAULT_MODEL, progress=lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="partywall-hybrid-") as made:
        folder = Path(made) / "hybrid"
        folder.mkdir()
        write_folder(folder, QWEN, QWEN.num_layers, tokenizer_of)
        figures = _turns(folder, tokenizer_of, weights, rounds)
        seen = _served(folder, peers, weights, rounds, timeout_seconds)
    figures |= _beside(seen)
    table = numbers_table(f"Qwen3.5-0.8B's shape, {weights}", "figure", *seen)
    medians = {server: _medians(found) for server, found in seen.items()}
    for name in next(iter(medians.values())):
        table.add_row(
            name, *(f"{one[name]:,.1f}" if name in one else "" for one in medians.values())
        )
    return Result(figures, [table])


def _turns(folder: Path, dense: Path, weights: str, rounds: int) -> dict[str, float]:
    core, seconds, alone = core_of(folder, weights), list[float](), list[float]()
    chats(core, -1)  # what is compiled or faulted in is, before anything is timed
    found = list[Turn]()
    for number in range(rounds):
        turns = chats(core, number)
        found += turns
        later = [turn for turn in turns if turn.number]
        seconds.append(median(turn.seconds for turn in later))
        counts = [turn.prompt_tokens - turn.found_tokens for turn in later]
        alone.append(without_history(core, number, counts))
    del core
    other = core_of(dense, "none")
    dense_found = sum(
        turn.found_tokens for number in range(rounds) for turn in chats(other, number)
    )
    return {
        "next_turn_ttft_ratio": median_ratio(seconds, alone),
        "hits_over_dense": sum(turn.found_tokens for turn in found) / dense_found,
        "next_turn_ms": 1000 * median(seconds),
        "without_history_ms": 1000 * median(alone),
    }


def _served(
    folder: Path, peers: Sequence[Peer], weights: str, rounds: int, timeout_seconds: float
) -> dict[str, list[dict[str, float]]]:
    load = Streams(_COLD_TOKENS, _OUTPUT_TOKENS, token_counter(DEFAULT_MODEL))
    quantize = "int8" if weights == "int8" else "none"
    flags = ["--model", str(folder), "--quantize", quantize, "--dtype", "bfloat16"]
    servers = [of_partywall(load, [*flags, "--kv-memory", "2GiB"])]
    for peer in peers:
        words = {"{folder}": str(folder), "{weights}": weights}
        servers.append(of_peer(filled_in(peer, words), load))
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for server in servers:
            found.setdefault(server.name, []).append(
                load_once(server, load, f"round {number}", timeout_seconds)
            )
        with running_modules(folder) as modules:
            found.setdefault(_MODULES, []).append(modules.measure(load, f"round {number}"))
    return found


def _beside(seen: Mapping[str, list[dict[str, float]]]) -> dict[str, float]:
    def over_best(figure: str, *, largest: bool) -> float:
        ours = [one[figure] for one in seen[OURS]]
        ratios = [
            median_ratio(ours, [one[figure] for one in found])
            for server, found in seen.items()
            if server != OURS
        ]
        return max(ratios) if largest else min(ratios)

    rates = [f"output_tokens_per_s_{streams}" for streams in STREAMS]
    return {
        "tokens_per_s_ratio": min(over_best(rate, largest=False) for rate in rates),
        "cold_ttft_ratio": over_best("ttft_ms_1", largest=True),
    } | {
        f"{name}_{server}": value
        for server, found in seen.items()
        for name, value in _medians(found).items()
        if name.startswith(("output_tokens_per_s", "ttft_ms", "itl_ms", "foreign_load"))
    }


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return over_rounds(rounds, peak_rss_mib=max, foreign_load_percent=max)
