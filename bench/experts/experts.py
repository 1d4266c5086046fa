"""Models of experts beside other servers: the same random weights, one stream and eight at once.

The models have the shapes of Granite 3.1 1B-A400M and of OLMoE 1B-7B, and are made in a temporary
folder, with the default model's tokenizer. Prompts resemble no other; answers are greedy and do not
end early. Every server is started, warmed up, loaded and stopped in each round:

- *partywall*: this service, over HTTP, in bfloat16 or with `--quantize int8`, without speculation:
  random models come to repeat themselves, and guesses that all come true would be measured;
- *transformers*: the modules of the model as they are, in a process of its own without a server,
  with their own cache; several prompts are one batch. In bfloat16 also where others have 8 bits;
- *llamacpp*, with `--llama-server`: llama.cpp's server on a GGUF file of the same weights, in BF16
  or Q8_0, with a KV cache in bfloat16;
- those of `--peers`: a file as `bench peers` takes it, in which `{folder}`, `{gguf}`, `{port}`
  and `{weights}` (bf16, int8) are filled in.

Ratios are Partywall's over the best peer's, whichever that is in each case; those without a case in
their name are the worst of all cases. How long a decode step takes (the median time between two
texts) is told over the time to read the bytes that it needs, at the rate at which memory can be
read: of experts those that were used, as the model's own modules counted them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import torch
from rich.table import Table

from bench.common.device_rates import read_rate
from bench.common.figures import median_ratio
from bench.experts.gguf_file import KINDS, write_gguf
from bench.experts.load import STREAMS, Streams, running_modules
from bench.experts.reads import step_bytes
from bench.experts.shapes import SHAPES, Shape, write_folder
from bench.peers.peer import Peer, filled_in, read_peers
from bench.peers.servers import OURS, Server, load_once, of_partywall, of_peer
from bench.registry import BenchError, Result
from bench.service.loads import count, positive, token_counter
from bench.service.loads.rounds import over_rounds
from engine.model.weights import DEFAULT_MODEL, default_gguf, resolve_model

_MODULES: Final = "transformers"
_CASE: Final = "SHAPE (granite, olmoe) in WEIGHTS (bf16, int8)"
_RATES: Final = tuple(f"output_tokens_per_s_{streams}" for streams in STREAMS)
FIGURES: Final = {
    **{
        f"tokens_per_s_ratio_{streams}": f"tokens a second, prompts included, {streams} at once: "
        "Partywall's over the best peer's, in its worst case"
        for streams in STREAMS
    },
    "ttft_ratio": "time to the first text of one stream: Partywall's over the best peer's, in its "
    "worst case",
    **{
        f"tokens_per_s_ratio_{streams}_SHAPE_WEIGHTS": f"the same in the case of {_CASE}"
        for streams in STREAMS
    },
    "ttft_ratio_SHAPE_WEIGHTS": f"the same in the case of {_CASE}",
    "output_tokens_per_s_SHAPE_WEIGHTS_STREAMS_SERVER": "generated tokens a second, prompts "
    "included, STREAMS (1, 8) at once",
    "ttft_ms_SHAPE_WEIGHTS_STREAMS_SERVER": "time to the first text, median, ms",
    "itl_ms_SHAPE_WEIGHTS_STREAMS_SERVER": "time between two texts, median, ms",
    "foreign_load_percent_SHAPE_WEIGHTS_SERVER": "how busy others kept the machine in its worst "
    "round, % of all cores",
    "over_bytes_SHAPE_WEIGHTS_STREAMS": "Partywall's time between two texts over the time to read "
    "the bytes of a step",
    "step_mib_SHAPE_WEIGHTS_STREAMS": "bytes that a step reads, MiB",
    "distinct_experts_SHAPE_STREAMS": "experts of a layer that a decode step uses, mean",
    "read_gib_per_s": "the rate at which memory is read, GiB a second",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--layers", type=count, help="of each model; default: its own number")
    parser.add_argument("--rounds", type=count, default=2, help="rounds; figures are their medians")
    parser.add_argument(
        "--prompt-tokens", type=count, default=512, help="tokens of a prompt's text"
    )
    parser.add_argument("--output-tokens", type=count, default=64, help="tokens of an answer")
    parser.add_argument(
        "--llama-server", type=Path, metavar="PATH", help="llama.cpp's server, to be a peer"
    )
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="FILE",
        help="others, with {folder}, {gguf}, {port}, {weights}",
    )
    parser.add_argument("--timeout-seconds", type=positive, default=600.0, help="for one answer")


def run(options: argparse.Namespace) -> Result:
    """Measure every shape in every kind of weights."""
    if options.output_tokens < 2:
        raise BenchError("--output-tokens: one token has no time between two")
    peers = [] if options.peers is None else read_peers(options.peers)
    if _MODULES in (peer.name for peer in peers):
        raise BenchError(f"{options.peers}: {_MODULES!r} is the model's own modules here")
    if options.llama_server is not None:
        peers.append(_llama_server(options.llama_server))
    tokenizer_of = resolve_model(DEFAULT_MODEL, progress=lambda line: print(line, file=sys.stderr))
    load = Streams(options.prompt_tokens, options.output_tokens, token_counter(DEFAULT_MODEL))
    rate = read_rate(torch.device("cpu"))
    figures: dict[str, float] = {"read_gib_per_s": rate / 2**30}
    tables = []
    for name in options.shapes:
        with tempfile.TemporaryDirectory(prefix="partywall-experts-") as made:
            model = _Model.made(Path(made), SHAPES[name], options.layers, tokenizer_of)
            with running_modules(model.folder) as modules:
                distinct = modules.distinct_experts(load)
            figures |= {f"distinct_experts_{name}_{at}": number for at, number in distinct.items()}
            for weights in options.weights:
                case = _Case(f"{name}_{weights}", model, weights, load)
                case.measure(peers, options.rounds, options.timeout_seconds)
                figures |= case.figures() | case.reads(distinct, rate)
                tables.append(case.table())
    return Result(_worst(figures) | figures, tables)


@dataclass(frozen=True)
class _Model:
    """A shape's folder, with as many layers as were asked for."""

    shape: Shape
    num_layers: int
    folder: Path
    vocab_size: int

    @classmethod
    def made(cls, parent: Path, shape: Shape, layers: int | None, tokenizer_of: Path) -> _Model:
        """Written below `parent`."""
        folder = parent / shape.family
        folder.mkdir()
        num_layers = min(layers or shape.num_layers, shape.num_layers)
        write_folder(folder, shape, num_layers, tokenizer_of)
        config = msgspec.json.decode((folder / "config.json").read_bytes())
        return cls(shape, num_layers, folder, config["vocab_size"])

    def gguf(self, weights: str) -> Path:
        """A file of these weights beside the folder. Raises `BenchError`."""
        path = self.folder.with_name(f"{weights}.gguf")
        tokenizer_of = default_gguf()
        if tokenizer_of is None:
            raise BenchError("the default model's GGUF file, whose tokenizer is used, is not here")
        if not path.exists():
            write_gguf(self.folder, path, weights, tokenizer_of)
        return path


@dataclass(frozen=True)
class _Case:
    """One model in one kind of weights, and what each server has shown in each round."""

    name: str
    model: _Model
    weights: str
    load: Streams
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def measure(self, peers: Sequence[Peer], rounds: int, timeout_seconds: float) -> None:
        """All servers in turns. Raises `BenchError` if one does not answer everything."""
        servers = [self._partywall(), *(self._peer(peer) for peer in peers)]
        for number in range(rounds):
            for server in servers:
                found = load_once(server, self.load, f"round {number}", timeout_seconds)
                self.rounds.setdefault(server.name, []).append(found)
            with running_modules(self.model.folder) as modules:
                found = modules.measure(self.load, f"round {number}")
                self.rounds.setdefault(_MODULES, []).append(found)

    def figures(self) -> dict[str, float]:
        """Absolute ones of each server, and the ratios."""
        found = {}
        for server in self.rounds:
            for figure, value in self._medians(server).items():
                if figure == "foreign_load_percent":
                    found[f"{figure}_{self.name}_{server}"] = value
                elif figure.rpartition("_")[2] in map(str, STREAMS):
                    kind, _, streams = figure.rpartition("_")
                    found[f"{kind}_{self.name}_{streams}_{server}"] = value
        for at, rate in zip(STREAMS, _RATES, strict=True):
            found[f"tokens_per_s_ratio_{at}_{self.name}"] = self._over_best(rate, min)
        found[f"ttft_ratio_{self.name}"] = self._over_best("ttft_ms_1", max)
        return found

    def reads(self, distinct: Mapping[int, float], rate: float) -> dict[str, float]:
        """A step's bytes, and its time over that of reading them at so many bytes a second."""
        ours = self._medians(OURS)
        context = self.load.prompt_tokens + self.load.output_tokens / 2
        found = {}
        for streams in STREAMS:
            size = step_bytes(
                self.model.shape,
                num_layers=self.model.num_layers,
                vocab_size=self.model.vocab_size,
                weights=self.weights,
                distinct_experts=distinct[streams],
                kv_tokens=streams * context,
            )
            found[f"step_mib_{self.name}_{streams}"] = size / 2**20
            seconds = ours[f"itl_ms_{streams}"] / 1000
            found[f"over_bytes_{self.name}_{streams}"] = seconds * rate / size
        return found

    def table(self) -> Table:
        """Every server's figures."""
        table = Table("figure", *self.rounds, title=self.name, title_justify="left")
        medians = [self._medians(server) for server in self.rounds]
        for figure in medians[0]:
            cells = (f"{one[figure]:,.1f}" if figure in one else "" for one in medians)
            table.add_row(figure, *cells)
        return table

    def _medians(self, server: str) -> dict[str, float]:
        return over_rounds(self.rounds[server], peak_rss_mib=max, foreign_load_percent=max)

    def _over_best(self, figure: str, worst: Callable[[Sequence[float]], float]) -> float:
        ours = [found[figure] for found in self.rounds[OURS]]
        return worst(
            [
                median_ratio(ours, [found[figure] for found in rounds])
                for server, rounds in self.rounds.items()
                if server != OURS
            ]
        )

    def _partywall(self) -> Server:
        quantize = "int8" if self.weights == "int8" else "none"
        flags = ["--model", str(self.model.folder), "--quantize", quantize, "--dtype", "bfloat16"]
        return of_partywall(self.load, [*flags, "--kv-memory", "1GiB", "--speculation", "off"])

    def _peer(self, peer: Peer) -> Server:
        needs_file = any("{gguf}" in word for word in peer.command)
        words = {
            "{folder}": str(self.model.folder),
            "{gguf}": str(self.model.gguf(self.weights)) if needs_file else "",
            "{weights}": self.weights,
        }
        return of_peer(filled_in(peer, words), self.load)


def _llama_server(program: Path) -> Peer:
    """As `bench/peers/peers.example.toml` has it; each slot has 1,024 tokens."""
    threads = str(len(os.sched_getaffinity(0)))
    most = max(STREAMS)
    sizes = ["-c", str(1024 * most), "-np", str(most), "-t", threads, "-tb", threads]
    return Peer(
        name="llamacpp",
        url="http://127.0.0.1:{port}/v1",
        model="experts",
        command=[
            *(str(program.resolve()), "-m", "{gguf}", "--host", "127.0.0.1", "--port", "{port}"),
            *(*sizes, "-ctk", "bf16", "-ctv", "bf16"),
        ],
        new_connections=True,
    )


def _worst(figures: Mapping[str, float]) -> dict[str, float]:
    found = {}
    for name, worst in (
        *((f"tokens_per_s_ratio_{at}", min) for at in STREAMS),
        ("ttft_ratio", max),
    ):
        found[name] = worst(value for of, value in figures.items() if of.startswith(f"{name}_"))
    return found
