"""Generation in tokens/s compared with transformers, llama.cpp and CTranslate2; cost of cache, length, int8 and start.

    python benchmarks/decoding.py --json --run runs/stories
    python benchmarks/decoding.py --only quality --run runs/stories

Model (`decoding_peers.py`): dim 288, 6 layers, 6 heads, hidden 1,152 swiglu (768 inside), tied head, rotary, RMSNorm,
vocabulary 4,096, context 256, the same random weights for all. Contestants run in turn in separate processes. A process warms
up and returns the median of the repetitions in half a second; the table has the medians of the processes. The load average
before and after is printed to stderr. With `--run` all sections take about twelve minutes on two cores.

speed    One stream, a batch, beam search, and many short samples. Lilliput uses its default, the numba engine, with two
         threads. A peer does each work with one thread and with two; the faster one is named in the table.
         int8 of Lilliput is also compared with float32 of transformers, because a user can choose it; its loss of quality is
         under `quality`. CTranslate2 runs in float32 only: its int8 products were wrong on a machine without VNNI (logits
         off by a third; by a hundredth with the same weights computed in float32).
         Share of bandwidth: tokens/s times the bytes of the weights, divided by the bytes/s at which two threads of the same
         process read a float32 array: of 512 MB, or of the size of the weights, which a cache may hold.
length   Speed with and without KV cache (numba and torch). Without it the whole text is read again for each token; for long
         texts every 4th or 32nd token is computed and its time multiplied.
         Time of token 1,000 compared with token 50, each a mean over 32 tokens. With full attention this ratio is compared
         with that of the bytes to read (weights, keys and values), and with that of the times in which two threads read
         arrays of these sizes repeatedly, because a cache may hold the smaller one. Repeated with 24 layers, whose
         weights (100 MB) do not fit in a cache.
quality  Bits per byte of the first 50 validation documents that fit in the context, token by token through the engine, with
         the model of `--run` or, by default, one trained for two minutes (recipes/stories.toml); and the seconds from the
         start of `lilliput generate` to its first byte. The table names the model.
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
from decoding_peers import BEAMS, DIM, LAYERS, ONE, WORKS, Work, Write, random_model
from lilliput.data.corpora import open_corpus
from lilliput.decoding.beam_hypotheses import BeamSettings
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.processors import GREEDY, Strategy, TopK
from lilliput.decoding.requests import Request
from lilliput.decoding.stream import stream
from lilliput.decoding.writer import load
from lilliput.model.transformer import Transformer

Metrics = dict[str, float]
Row = dict[str, Any]

WARM_UP, ENOUGH, MOST = 8, 0.5, 3  # tokens; seconds of measurement; largest number of measurements
LARGE = 512 << 20  # bytes of an array that does not fit in a processor's cache
LENGTHS = {64: 1, 256: 4, 1024: 32}  # tokens to generate -> without cache, one of this number of passes is computed
EARLY, LATE, AROUND, WINDOW, ROUNDS = 50, 1000, 32, 64, 5
DEEP = 24  # layers of a model whose weights do not fit in a cache
FEW = 3  # processes are enough where each one computes its own ratio
DOCUMENTS, TOGETHER = 50, 10
RUN = "DECODING_RUN"  # environment variable with the path of the trained model
ROOT = Path(__file__).parents[1]


def build_engine(kind: str, model: Transformer) -> Engine:
    if kind == "torch":
        return TorchEngine(model)
    from lilliput.decoding.engines.compiled_engine import NumbaEngine

    return NumbaEngine(model, threads=THREADS, quantise="int8" if kind == "numba int8" else None)


# Speed.


def ours(kind: str) -> Write:
    model = random_model()
    engine = build_engine(kind, model)
    peers.check(kind, lambda text: engine.prefill([text])[0][0].numpy(), model, exact=kind != "numba int8")

    def write(work: Work, tokens: int) -> list[list[int]]:
        prompts = work.prompts()
        beams = BeamSettings(work.beams, tokens) if work.beams > 1 else None
        strategy = GREEDY if work.top_k is None else Strategy((TopK(work.top_k),), sample=True)
        texts: list[list[int]] = [[] for _ in prompts]
        requests = [Request(prompt, tokens, strategy, seed, beams=beams) for seed, prompt in enumerate(prompts)]
        for token in stream(engine, requests):
            texts[token.row].append(token.id)
        return texts

    return write


def time_works(write: Write, works: tuple[Work, ...]) -> Metrics:
    """Return tokens/s by the name of the work."""
    metrics = {}
    for work in works:
        write(work, WARM_UP)
        seconds: list[float] = []
        while sum(seconds) < ENOUGH and len(seconds) < MOST:
            began = time.perf_counter()
            texts = write(work, work.tokens)
            seconds.append(time.perf_counter() - began)
            if [len(text) for text in texts] != [work.tokens] * work.rows:
                raise SystemExit(f"{work.name}: the texts have the wrong length")
        metrics[work.name] = work.rows * work.tokens / statistics.median(seconds)
    return metrics


def time_ours(kind: str, works: tuple[Work, ...]) -> Metrics:
    metrics, size = time_works(ours(kind), works), weight_bytes(random_model(), kind)
    return metrics | {"bytes": size, "bandwidth": bandwidth(LARGE), "bandwidth in cache": bandwidth(size)}


def weight_bytes(model: Transformer, kind: str) -> int:
    """Return the bytes of weights read per token: each matrix once (tied head); int8 has a float32 scale per output."""
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    saved = sum(3 * matrix.numel() - 4 * len(matrix) for matrix in matrices) if kind == "numba int8" else 0
    return sum(4 * weight.numel() for weight in model.parameters()) - saved


def bandwidth(size: int) -> float:
    """Return the bytes/s at which all threads together read an array."""
    array, found = torch.ones(size // 4), []
    array.sum()
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until:
        began = time.perf_counter()
        array.sum()
        found.append(size / (time.perf_counter() - began))
    return statistics.median(found)


def time_peer(build: Callable[[int], Write], threads: int, works: tuple[Work, ...]) -> Metrics:
    return time_works(build(threads), works)


def with_threads(peer: str, build: Callable[[int], Write], works: tuple[Work, ...]) -> dict[str, Callable[[], Metrics]]:
    """Return a contestant for each number of threads: a second thread may help with many rows and slow down one row."""
    return {
        f"{peer}, {threads} thread{'s' * (threads > 1)}": partial(time_peer, build, threads, works)
        for threads in sorted({1, THREADS})
    }


NUMBA, INT8 = "lilliput numba", "lilliput numba int8"
EXACT, ROUGH = ("transformers", "llama.cpp f32", "CTranslate2"), "llama.cpp q8_0"
SPEED: dict[str, Callable[[], Metrics]] = {
    NUMBA: lambda: time_ours("numba", WORKS),
    **with_threads("transformers", peers.transformers, WORKS),
    **with_threads("llama.cpp f32", partial(peers.llama_cpp, quantised=False), (ONE,)),
    INT8: lambda: time_ours("numba int8", WORKS),
    **with_threads("llama.cpp q8_0", partial(peers.llama_cpp, quantised=True), (ONE,)),
    **with_threads("CTranslate2", peers.ctranslate2, WORKS),
}


PACKAGES = {"transformers": "transformers", "llama.cpp": "llama_cpp", "CTranslate2": "ctranslate2"}


def speed(options: argparse.Namespace) -> list[Row]:
    absent = tuple(peer for peer, package in PACKAGES.items() if importlib.util.find_spec(package) is None)
    if absent:
        print(f"not measured because not installed: {', '.join(absent)} (`make bench` installs all)", file=sys.stderr)
    found = contest(__file__, [name for name in SPEED if not name.startswith(absent)], options.repeats)
    speeds = {name: {work: median(took, work) for work in took[0]} for name, took in found.items()}

    def compare(name: str, engine: str, work: Work, peer: str) -> list[Row]:
        """Return a row if the peer supports the work, with its faster number of threads."""
        able = {key: took[work.name] for key, took in speeds.items() if key.startswith(peer) and work.name in took}
        best = max(able, key=able.__getitem__, default=None)
        return [row(name, speeds[engine][work.name], able[best], best, "tokens/s")] if best else []

    rows = [line for work in WORKS for peer in EXACT for line in compare(f"{work.name} (numba)", NUMBA, work, peer)]
    rows += compare(f"{ONE.name}, int8 (numba)", INT8, ONE, ROUGH)
    rows += [line for work in WORKS for line in compare(f"{work.name}, int8 (numba)", INT8, work, "transformers")]
    seconds = {work: work.tokens / speeds[NUMBA][work.name] for work in (ONE, *BEAMS)}
    rows += [row(f"{beam.name} (numba)", seconds[beam], seconds[ONE], "lilliput greedy", "s") for beam in BEAMS]
    for engine, name in ((NUMBA, "float32"), (INT8, "int8")):
        for metric, peer in (("bandwidth", "reading 512 MB"), ("bandwidth in cache", "reading the weights")):
            shares = [took[ONE.name] * took["bytes"] / took[metric] for took in found[engine]]
            read = speeds[engine][ONE.name] * speeds[engine]["bytes"]
            share = row(f"one stream, {name}: share of bandwidth", read, speeds[engine][metric], peer, "bytes/s")
            rows.append(share | {"ratio": statistics.median(shares)})  # median of the processes' ratios
    return rows


# Length.


def time_lengths(kind: str) -> Metrics:
    metrics = time_cache(kind) | time_tokens(kind, "window", WINDOW, LAYERS)
    for layers in (LAYERS, DEEP):
        metrics |= time_tokens(kind, f"full {layers}", None, layers)
        sizes = {at: read_bytes(at, layers) for at in (EARLY, LATE)}
        metrics |= {f"reading {layers} {at}": size / bandwidth(size) for at, size in sizes.items()}
    return metrics


def time_cache(kind: str) -> Metrics:
    """Return the seconds of whole texts with and without cache."""
    engine, (prompt,) = build_engine(kind, random_model(ONE.prompt + max(LENGTHS))), ONE.prompts()
    (text,) = Work("a long text", 1, ONE.prompt + max(LENGTHS), 0).prompts()
    metrics: Metrics = {}
    list(stream(engine, [Request(prompt, WARM_UP)]))
    for tokens, stride in LENGTHS.items():
        began = time.perf_counter()
        assert len(list(stream(engine, [Request(prompt, tokens)]))) == tokens
        metrics[f"with {tokens}"] = time.perf_counter() - began
        began = time.perf_counter()
        for generated in range(stride // 2, tokens, stride):
            engine.prefill([text[: ONE.prompt + generated]])[0].argmax()
        metrics[f"without {tokens}"] = stride * (time.perf_counter() - began)
    return metrics


def time_tokens(kind: str, span: str, window: int | None, layers: int) -> Metrics:
    """Return the seconds per token at an early and at a late position."""
    (text,) = Work("a long text", 1, LATE + AROUND, 0).prompts()
    engine = build_engine(kind, random_model(len(text), window, layers))
    held = {at: engine.prefill([text[: at - AROUND // 2 - 1]])[1] for at in (EARLY, LATE)}
    took: dict[int, list[float]] = {at: [] for at in held}
    for _ in range(ROUNDS):
        for at, rows in held.items():
            first, *rest = text[at - AROUND // 2 - 1 : at + AROUND // 2]
            going = rows.pick([0])
            going.step([[first]])  # may copy the picked rows
            began = time.perf_counter()
            for id_ in rest:
                going.step([[id_]])
            took[at].append((time.perf_counter() - began) / AROUND)
    return {f"{span} {at}": statistics.median(seconds) for at, seconds in took.items()}


def read_bytes(at: int, layers: int) -> int:
    """Return the bytes to read for the token at this position: all weights, and the keys and values before it."""
    return weight_bytes(random_model(layers=layers), "torch") + at * layers * 2 * DIM * 4


LENGTH: dict[str, Callable[[], Metrics]] = {
    "lengths numba": lambda: time_lengths("numba"),
    "lengths torch": lambda: time_lengths("torch"),
}


def length(options: argparse.Namespace) -> list[Row]:
    contestants, rows = contest(__file__, list(LENGTH), min(options.repeats, FEW)), []
    for name, found in contestants.items():
        engine = name.removeprefix("lengths ")
        for tokens in LENGTHS:
            cached, whole = (tokens / median(found, f"{cache} {tokens}") for cache in ("with", "without"))
            rows.append(row(f"with cache, {tokens:,} tokens ({engine})", cached, whole, "without cache", "tokens/s"))
        which = f"token {LATE:,} / token {EARLY}"
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
            rows.append(row(work, grown, reading, "ratio of reading times", "times"))
        flat = statistics.median(took[f"window {LATE}"] / took[f"window {EARLY}"] for took in found)
        slow, quick = (median(found, f"window {at}") for at in (LATE, EARLY))
        rows.append(row(f"{which}, window {WINDOW} ({engine})", slow, quick, f"token {EARLY}", "s") | {"ratio": flat})
    return rows


# Quality, and the time to the first byte.


def quality_of(kind: str) -> Metrics:
    writer = load(os.environ[RUN], "cpu")
    texts: list[list[int]] = []  # each from the start token to end-of-text
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
    assert writer.checkpoint is not None, "the model was loaded from a checkpoint"
    return {
        "bits per byte": nats / math.log(2) / size,
        "documents": len(texts),
        "tokens": tokens,
        "bytes": size,
        "weights": sum(weight.numel() for weight in writer.model.parameters()),
        "updates": writer.checkpoint.step,
    }


def read_along(engine: Engine, texts: list[list[int]]) -> float:
    """Return the nats of all tokens but the first of each text, computed token by token."""
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


QUALITY: dict[str, Callable[[], Metrics]] = {
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
    """Return the seconds from the start of the command to its first byte, which is its first token (the prompt is empty)."""
    flags = ["--prompt", "", "--temperature", "0", "--tokens", "20"]
    command = [sys.executable, "-m", "lilliput", "generate", run, *flags]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None and process.stdout.read(1), "the command printed nothing"
        seconds = time.perf_counter() - began
        process.stdout.read()
    print(f"  first byte after {seconds:.2f} s", file=sys.stderr, flush=True)
    return seconds


def quality(options: argparse.Namespace) -> list[Row]:
    if options.run:
        return measure_run(options.run, f"run {Path(options.run).name}", options.repeats)
    with tempfile.TemporaryDirectory(prefix="decoding-") as folder:
        name = f"stories.toml for {options.minutes:g} minutes"
        return measure_run(train(folder, options.minutes), name, options.repeats)


def measure_run(run: str, name: str, repeats: int) -> list[Row]:
    os.environ[RUN] = run
    found = contest(__file__, list(QUALITY), 1)
    reference, exact, rough = (median(found[kind], "bits per byte") for kind in QUALITY)
    weights, steps = (median(found["quality torch"], metric) for metric in ("weights", "updates"))
    model = f"{name}, {weights / 1e6:.1f} million weights, {steps:,.0f} steps"
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
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument(
        "--repeats", type=int, default=5, help=f"number of processes per contestant; for length at most {FEW} [5]"
    )
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help="sections, separated by commas [speed,length,quality]"
    )
    parser.add_argument("--run", help="finished run for quality [train one for --minutes]")
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of that training [2]")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        torch.set_num_threads(THREADS)
        print(json.dumps((SPEED | LENGTH | QUALITY)[options.contestant]()))
        return
    if wrong := set(options.only.split(",")) - set(SECTIONS):
        parser.error(f"--only must name sections of {', '.join(SECTIONS)} (got {min(wrong)})")
    before = os.getloadavg()
    rows = [found for name in options.only.split(",") for found in SECTIONS[name](options)]
    for when, load_average in (("before", before), ("after (including this benchmark)", os.getloadavg())):
        print(
            f"load average {when}: {load_average[0]:.2f} {load_average[1]:.2f} {load_average[2]:.2f}", file=sys.stderr
        )
    show(rows, options.json)


if __name__ == "__main__":
    main()
