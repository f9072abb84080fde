"""Writing: tokens per second beside transformers, llama.cpp and CTranslate2, and what cache, length, 8 bits and a start cost.

    python benchmarks/decoding.py --json --run runs/stories
    python benchmarks/decoding.py --only quality --run runs/stories

The net (`decoding_peers.py`): dim 288, 6 layers, 6 heads, hidden 1,152 swiglu (768 inside), tied head, rotary, RMSNorm,
vocabulary 4,096, context 256, the same random weights for all. Contestants take turns, each in a process of its own, which
warms up and takes the median of what fits into half a second; the median of the processes counts. The load average before and
after goes to stderr with the table. The whole takes about twelve minutes on two cores, with `--run`.

speed    One stream, a batch, beams, and many short samples. We run as `auto` does: the numba engine, for every work with two
         threads. A peer runs every work with one thread and with two, and the quicker of both medians is told, by name.
         Whole numbers of ours are told beside transformers' float32, too, as what a user can choose; that is another
         precision, whose quality is under `quality`. CTranslate2 is there in float32 only: where it was tried, without VNNI,
         its 8-bit products are wrong (logits a third off; with the same weights, computed in float32, a hundredth), so that it
         would be timed with another net.
         The share of the bandwidth: tokens per second, times the bytes of the weights, over the bytes per second at which two
         threads read a float32 array in the same process: of 512 MB, or as large as the weights, which a cache may hold.
length   With the cache and without, where the engine (numba, and torch) reads the whole text anew for each token (of long texts
         for every 4th or 32nd, which is counted so often). Token 1,000 beside token 50: means over 32 tokens around them; with
         full attention beside the ratio of the bytes of weights, keys and values that must be read, and beside the ratio of
         the times that two threads take to read arrays as large as that, over and over: a cache may hold the smaller one. So
         also for a net of 24 layers, whose weights (100 MB) are in no cache at either token.
quality  Bits per byte of the first 50 validation documents that fit the context, token by token through the engine, by the
         finished model of `--run`, or, if none is given, by one that learns for two minutes (recipes/stories.toml); and the
         seconds from the start of `lilliput generate` with this model to its first byte. The rows say which model it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import decoding_peers as peers
from contest import THREADS, contest, median, row, show
from decoding_peers import BEAMS, DIM, LAYERS, ONE, WORKS, Work, Write, build_net
from lilliput.data.corpora import open_corpus
from lilliput.decoding.beam_hypotheses import BeamSettings
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.processors import GREEDY, Strategy, TopK
from lilliput.decoding.requests import Request
from lilliput.decoding.stream import stream
from lilliput.decoding.writer import load
from lilliput.model.transformer import Transformer

Figures = dict[str, float]
Row = dict[str, Any]

WARM_UP, ENOUGH, MOST = 8, 0.5, 3  # tokens; seconds after which there are enough measurements; most measurements
LARGE = 512 << 20  # bytes of an array that no processor's cache holds
LENGTHS = {64: 1, 256: 4, 1024: 32}  # tokens to write, and of how many passes without a cache one is computed
EARLY, LATE, AROUND, WINDOW, ROUNDS = 50, 1000, 32, 64, 5
DEEP = 24  # layers of a net that no cache holds
FEW = 3  # processes are enough where a ratio is of one process's own figures
DOCUMENTS, TOGETHER = 50, 10
RUN = "DECODING_RUN"  # environment variable by which a contestant finds the trained model
ROOT = Path(__file__).parents[1]


def build_engine(kind: str, model: Transformer) -> Engine:
    if kind == "torch":
        return TorchEngine(model)
    from lilliput.decoding.engines.compiled_engine import NumbaEngine

    return NumbaEngine(model, threads=THREADS, quantise="int8" if kind == "numba int8" else None)


# Speed.


def ours(kind: str) -> Write:
    model = build_net()
    engine = build_engine(kind, model)
    peers.check(kind, lambda text: engine.prefill([text])[0][0].numpy(), model, exact=kind != "numba int8")

    def write(work: Work, tokens: int) -> list[list[int]]:
        prompts = work.prompts()
        beams = BeamSettings(work.beams, tokens) if work.beams > 1 else None
        strategy = GREEDY if work.top_k is None else Strategy((TopK(work.top_k),), sample=True)
        texts: list[list[int]] = [[] for _ in prompts]
        requests = [Request(prompt, tokens, strategy, seed, beams=beams) for seed, prompt in enumerate(prompts)]
        for written in stream(engine, requests):
            texts[written.row].append(written.id)
        return texts

    return write


def time_works(write: Write, works: tuple[Work, ...]) -> Figures:
    """Tokens per second, by the name of the work."""
    figures = {}
    for work in works:
        write(work, WARM_UP)
        seconds: list[float] = []
        while sum(seconds) < ENOUGH and len(seconds) < MOST:
            began = time.perf_counter()
            texts = write(work, work.tokens)
            seconds.append(time.perf_counter() - began)
            if [len(text) for text in texts] != [work.tokens] * work.rows:
                raise SystemExit(f"{work.name}: not everything was written")
        figures[work.name] = work.rows * work.tokens / statistics.median(seconds)
    return figures


def time_ours(kind: str, works: tuple[Work, ...]) -> Figures:
    figures, size = time_works(ours(kind), works), weight_bytes(build_net(), kind)
    return figures | {"bytes": size, "bandwidth": bandwidth(LARGE), "bandwidth in cache": bandwidth(size)}


def weight_bytes(model: Transformer, kind: str) -> int:
    """What one token must read: each matrix once (the embedding is the head), 8 bits with a scale of 32 for each output."""
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    saved = sum(3 * matrix.numel() - 4 * len(matrix) for matrix in matrices) if kind == "numba int8" else 0
    return sum(4 * weight.numel() for weight in model.parameters()) - saved


def bandwidth(size: int) -> float:
    """Bytes per second at which all threads together read an array."""
    array, found = torch.ones(size // 4), []
    array.sum()
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until:
        began = time.perf_counter()
        array.sum()
        found.append(size / (time.perf_counter() - began))
    return statistics.median(found)


def time_peer(build: Callable[[int], Write], threads: int, works: tuple[Work, ...]) -> Figures:
    return time_works(build(threads), works)


def with_threads(peer: str, build: Callable[[int], Write], works: tuple[Work, ...]) -> dict[str, Callable[[], Figures]]:
    """A contestant for each number of threads: a second one may help with many rows and hinder with one."""
    return {
        f"{peer}, {threads} thread{'s' * (threads > 1)}": partial(time_peer, build, threads, works)
        for threads in sorted({1, THREADS})
    }


NUMBA, INT8 = "lilliput numba", "lilliput numba int8"
EXACT, ROUGH = ("transformers", "llama.cpp f32", "CTranslate2"), "llama.cpp q8_0"
SPEED: dict[str, Callable[[], Figures]] = {
    NUMBA: lambda: time_ours("numba", WORKS),
    **with_threads("transformers", peers.transformers, WORKS),
    **with_threads("llama.cpp f32", partial(peers.llama_cpp, quantised=False), (ONE,)),
    INT8: lambda: time_ours("numba int8", WORKS),
    **with_threads("llama.cpp q8_0", partial(peers.llama_cpp, quantised=True), (ONE,)),
    **with_threads("CTranslate2", peers.ctranslate2, WORKS),
}


PACKAGES = {"transformers": "transformers", "llama.cpp": "llama_cpp", "CTranslate2": "ctranslate2"}


def speed(asked: argparse.Namespace) -> list[Row]:
    absent = tuple(peer for peer, package in PACKAGES.items() if importlib.util.find_spec(package) is None)
    if absent:
        print(f"not installed, and so not measured: {', '.join(absent)} (`make bench` installs all)", file=sys.stderr)
    found = contest(__file__, [name for name in SPEED if not name.startswith(absent)], asked.repeats)
    speeds = {name: {work: median(took, work) for work in took[0]} for name, took in found.items()}

    def beside(name: str, engine: str, work: Work, peer: str) -> list[Row]:
        """A row, if the peer does the work: with that number of threads with which he does it quicker."""
        able = {who: took[work.name] for who, took in speeds.items() if who.startswith(peer) and work.name in took}
        best = max(able, key=able.__getitem__, default=None)
        return [row(name, speeds[engine][work.name], able[best], best, "tokens/s")] if best else []

    rows = [line for work in WORKS for peer in EXACT for line in beside(f"{work.name} (numba)", NUMBA, work, peer)]
    rows += beside(f"{ONE.name}, int8 (numba)", INT8, ONE, ROUGH)
    rows += [line for work in WORKS for line in beside(f"{work.name}, int8 (numba)", INT8, work, "transformers")]
    seconds = {work: work.tokens / speeds[NUMBA][work.name] for work in (ONE, *BEAMS)}
    rows += [row(f"{beam.name} (numba)", seconds[beam], seconds[ONE], "our own greedy", "s") for beam in BEAMS]
    for engine, name in ((NUMBA, "float32"), (INT8, "int8")):
        for figure, peer in (("bandwidth", "reading memory"), ("bandwidth in cache", "reading as many bytes")):
            shares = [took[ONE.name] * took["bytes"] / took[figure] for took in found[engine]]
            read = speeds[engine][ONE.name] * speeds[engine]["bytes"]
            share = row(f"one stream, {name}: share of bandwidth", read, speeds[engine][figure], peer, "bytes/s")
            rows.append(share | {"ratio": statistics.median(shares)})  # of each process, then the median
    return rows


# Length.


def time_lengths(kind: str) -> Figures:
    figures = time_cache(kind) | time_tokens(kind, "window", WINDOW, LAYERS)
    for layers in (LAYERS, DEEP):
        figures |= time_tokens(kind, f"full {layers}", None, layers)
        sizes = {at: read_bytes(at, layers) for at in (EARLY, LATE)}
        figures |= {f"reading {layers} {at}": size / bandwidth(size) for at, size in sizes.items()}
    return figures


def time_cache(kind: str) -> Figures:
    """Seconds of whole texts."""
    engine, (prompt,) = build_engine(kind, build_net(ONE.prompt + max(LENGTHS))), ONE.prompts()
    (text,) = Work("a long text", 1, ONE.prompt + max(LENGTHS), 0).prompts()
    figures: Figures = {}
    list(stream(engine, [Request(prompt, WARM_UP)]))
    for tokens, stride in LENGTHS.items():
        began = time.perf_counter()
        assert len(list(stream(engine, [Request(prompt, tokens)]))) == tokens
        figures[f"with {tokens}"] = time.perf_counter() - began
        began = time.perf_counter()
        for written in range(stride // 2, tokens, stride):
            engine.prefill([text[: ONE.prompt + written]])[0].argmax()
        figures[f"without {tokens}"] = stride * (time.perf_counter() - began)
    return figures


def time_tokens(kind: str, span: str, window: int | None, layers: int) -> Figures:
    """Seconds of a token after few tokens and after many."""
    (text,) = Work("a long text", 1, LATE + AROUND, 0).prompts()
    engine = build_engine(kind, build_net(len(text), window, layers))
    held = {at: engine.prefill([text[: at - AROUND // 2 - 1]])[1] for at in (EARLY, LATE)}
    took: dict[int, list[float]] = {at: [] for at in held}
    for _ in range(ROUNDS):
        for at, rows in held.items():
            first, *rest = text[at - AROUND // 2 - 1 : at + AROUND // 2]
            going = rows.pick([0])
            going.step([[first]])  # may copy what was picked
            began = time.perf_counter()
            for id_ in rest:
                going.step([[id_]])
            took[at].append((time.perf_counter() - began) / AROUND)
    return {f"{span} {at}": statistics.median(seconds) for at, seconds in took.items()}


def read_bytes(at: int, layers: int) -> int:
    """What must be read for the token there: all weights, and the keys and values before it."""
    return weight_bytes(build_net(layers=layers), "torch") + at * layers * 2 * DIM * 4


LENGTH: dict[str, Callable[[], Figures]] = {
    "lengths numba": lambda: time_lengths("numba"),
    "lengths torch": lambda: time_lengths("torch"),
}


def length(asked: argparse.Namespace) -> list[Row]:
    contestants, rows = contest(__file__, list(LENGTH), min(asked.repeats, FEW)), []
    for name, found in contestants.items():
        engine = name.removeprefix("lengths ")
        for tokens in LENGTHS:
            cached, whole = (tokens / median(found, f"{how} {tokens}") for how in ("with", "without"))
            rows.append(row(f"with cache, {tokens:,} tokens ({engine})", cached, whole, "without cache", "tokens/s"))
        which = f"token {LATE:,} beside token {EARLY}"
        for layers in (LAYERS, DEEP):
            grown, reading = (
                statistics.median(took[f"{what} {layers} {LATE}"] / took[f"{what} {layers} {EARLY}"] for took in found)
                for what in ("full", "reading")
            )
            work, size = (
                f"{which}, full, {layers} layers ({engine})",
                read_bytes(LATE, layers) / read_bytes(EARLY, layers),
            )
            rows.append(row(work, grown, size, "ratio of bytes read", "times"))
            rows.append(row(work, grown, reading, "ratio of times of reading them", "times"))
        flat = statistics.median(took[f"window {LATE}"] / took[f"window {EARLY}"] for took in found)
        slow, quick = (median(found, f"window {at}") for at in (LATE, EARLY))
        rows.append(row(f"{which}, window {WINDOW} ({engine})", slow, quick, f"token {EARLY}", "s") | {"ratio": flat})
    return rows


# Quality, and the start.


def quality_of(kind: str) -> Figures:
    writer = load(os.environ[RUN], "cpu")
    texts: list[list[int]] = []  # each from the token before its first to the end-of-text token
    size = 0
    for document in open_corpus(writer.config.data).documents("validation"):
        ids = [writer.tokenizer.start, *writer.tokenizer.encode(document.text)]
        if len(ids) <= writer.config.model.context and len(texts) < DOCUMENTS:
            texts.append([*ids, writer.tokenizer.end])
            size += len(document.text.encode())
    texts.sort(key=len)
    engine = build_engine(kind, writer.model)
    nats = sum(read_along(engine, texts[at : at + TOGETHER]) for at in range(0, len(texts), TOGETHER))
    tokens = sum(len(text) - 1 for text in texts)
    assert writer.checkpoint is not None, "the model was loaded from one"
    return {
        "bits per byte": nats / math.log(2) / size,
        "documents": len(texts),
        "tokens": tokens,
        "bytes": size,
        "weights": sum(weight.numel() for weight in writer.model.parameters()),
        "updates": writer.checkpoint.step,
    }


def read_along(engine: Engine, texts: list[list[int]]) -> float:
    """Nats of all tokens but the first ones, each asked of the engine after those before it."""
    logits, rows = engine.prefill([text[:1] for text in texts])
    nats = 0.0
    for at in itertools.count(1):
        targets = torch.tensor([[text[at]] for text in texts])
        nats -= logits.double().log_softmax(dim=1).gather(1, targets).sum().item()
        places = [place for place, text in enumerate(texts) if len(text) > at + 1]
        if not places:
            break
        if len(places) < len(texts):
            rows.reorder(places)
            texts = [texts[place] for place in places]
        logits = rows.step([[text[at]] for text in texts])
    return nats


QUALITY: dict[str, Callable[[], Figures]] = {
    "quality torch": lambda: quality_of("torch"),
    "quality numba": lambda: quality_of("numba"),
    "quality numba int8": lambda: quality_of("numba int8"),
}


def train(folder: str, minutes: float) -> str:
    places = {"name": "decoding", "log.folder": folder, "data.cache": f"{folder}/prepared"}
    settings = places | {"train.minutes": str(minutes), "log.sample_seconds": "none"}
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "lilliput", "train", str(ROOT / "recipes" / "stories.toml"), *flags]
    data = {"LILLIPUT_DATA": os.environ.get("LILLIPUT_DATA") or str(ROOT.parent / "shared" / "data")}
    subprocess.run(command, env=os.environ | data, check=True, stdout=sys.stderr)
    return f"{folder}/decoding"


def first_byte(run: str) -> float:
    """Seconds from the start of the command; after an empty prompt nothing is printed before the first token."""
    flags = ["--prompt", "", "--temperature", "0", "--tokens", "20"]
    command = [sys.executable, "-m", "lilliput", "generate", run, *flags]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None and process.stdout.read(1), "nothing was written"
        seconds = time.perf_counter() - began
        process.stdout.read()
    print(f"  first byte after {seconds:.2f} s", file=sys.stderr, flush=True)
    return seconds


def quality(asked: argparse.Namespace) -> list[Row]:
    if asked.run:
        return judge(asked.run, f"run {Path(asked.run).name}", asked.repeats)
    with tempfile.TemporaryDirectory(prefix="decoding-") as folder:
        return judge(train(folder, asked.minutes), f"stories.toml for {asked.minutes:g} minutes", asked.repeats)


def judge(run: str, name: str, repeats: int) -> list[Row]:
    os.environ[RUN] = run
    found = contest(__file__, list(QUALITY), 1)
    reference, exact, rough = (median(found[kind], "bits per byte") for kind in QUALITY)
    weights, updates = (median(found["quality torch"], figure) for figure in ("weights", "updates"))
    model = f"{name}, {weights / 1e6:.1f} million weights after {updates:,.0f} updates"
    first_byte(run)  # the disk is warm and compiled code is cached from here on
    seconds = statistics.median(first_byte(run) for _ in range(repeats))
    return [
        row(f"validation text, float32 (numba; {model})", exact, reference, "float32 (torch)", "bits/byte"),
        row(f"validation text, int8 (numba; {model})", rough, exact, "float32 (numba)", "bits/byte"),
        row(f"first token after `lilliput generate` starts ({model})", seconds, 3.0, "3 s", "s"),
    ]


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {"speed": speed, "length": length, "quality": quality}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")
    parser.add_argument(
        "--repeats", type=int, default=5, help=f"processes of each contestant, for length at most {FEW} [5]"
    )
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help="some of speed, length, quality, with commas between"
    )
    parser.add_argument("--run", help="a finished run for quality and the start [one that learns for --minutes]")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long that one learns [2]")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contestant:
        torch.set_num_threads(THREADS)
        print(json.dumps((SPEED | LENGTH | QUALITY)[asked.contestant]()))
        return
    if wrong := set(asked.only.split(",")) - set(SECTIONS):
        parser.error(f"there is no section {min(wrong)}: {', '.join(SECTIONS)}")
    before = os.getloadavg()
    rows = [found for name in asked.only.split(",") for found in SECTIONS[name](asked)]
    for when, load_average in (("before", before), ("after, our own included", os.getloadavg())):
        print(
            f"load average {when}: {load_average[0]:.2f} {load_average[1]:.2f} {load_average[2]:.2f}", file=sys.stderr
        )
    show(rows, asked.json)


if __name__ == "__main__":
    main()
