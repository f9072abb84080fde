"""Training speed in tokens/s, compared with GPT-2 of transformers and with the matmul peak of the machine.

    python benchmarks/training.py --json

Model of both: dim 288, 6 layers, 6 heads, hidden 1,152 gelu, context 256, vocabulary 4,096, learned positions, Pre-LN, biases,
tied head. Both train with AdamW and clipping on batches of 16 x 256 random tokens, float32, two threads.
FLOPs per token = 6 x (matmul parameters, with the head) + 6 x layers x context x dim (the causal half of attention).
The peak is a 2048 x 2048 float32 product, measured before and after the steps in the same process.
`gpt2` has the defaults of transformers (tanh approximation of gelu). `gpt2 + our settings` has Lilliput's allocator settings,
fused AdamW and exact gelu, so that only the code differs.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch

from contest import THREADS, arguments, contest, median, row, show

DIM, LAYERS, HEADS, HIDDEN, CONTEXT, VOCABULARY, BATCH = 288, 6, 6, 1152, 256, 4096, 16
WARM_UP, STEPS = 2, 6


def ours() -> Callable[[], float]:
    from lilliput.devices import prepare_machine
    from lilliput.model.language_loss import language_loss
    from lilliput.model.transformer import build_model
    from lilliput.settings.loading import load_config
    from lilliput.training.optimizers import build_optimizer, clip_gradients, gradient_norm

    settings = {
        "dim": DIM,
        "layers": LAYERS,
        "heads": HEADS,
        "hidden": HIDDEN,
        "context": CONTEXT,
        "vocab_size": VOCABULARY,
        "norm": "layer",
        "positions": "learned",
        "feed_forward": "gelu",
        "qk_norm": "false",
        "tied": "true",
        "bias_attention_input": "true",
        "bias_attention_output": "true",
        "bias_feed_forward": "true",
        "initialisation": "gpt2",
    }
    config = load_config(None, {f"model.{name}": str(value) for name, value in settings.items()})
    prepare_machine(THREADS)
    model = build_model(config.model, seed=1)
    optimizer = build_optimizer(config.optimizer, model)
    ids, targets = tokens()

    def step() -> float:
        loss = language_loss(model, ids, targets, None, None).goal / targets.numel()
        loss.backward()
        clip_gradients(model, gradient_norm(model), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def gpt2(ours: bool) -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    if ours:
        from lilliput.devices import keep_freed_memory

        keep_freed_memory()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=DIM,
            n_layer=LAYERS,
            n_head=HEADS,
            n_inner=HIDDEN,
            activation_function="gelu" if ours else "gelu_new",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=ours)
    ids, _ = tokens()

    def step() -> float:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(0, VOCABULARY, (BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def flops_per_token() -> int:
    matrices = LAYERS * (4 * DIM * DIM + 2 * DIM * HIDDEN) + DIM * VOCABULARY
    return 6 * matrices + 6 * LAYERS * CONTEXT * DIM


def peak(times: int = 7) -> list[float]:
    a, b, out = torch.randn(2048, 2048), torch.randn(2048, 2048), torch.empty(2048, 2048)
    found = []
    for _ in range(times):
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        found.append(2 * 2048**3 / (time.perf_counter() - began))
    return found


CONTESTANTS: dict[str, Callable[[], Callable[[], float]]] = {
    "lilliput": ours,
    "gpt2": lambda: gpt2(ours=False),
    "gpt2 + our settings": lambda: gpt2(ours=True),
}


def measure(name: str) -> dict[str, float]:
    torch.set_num_threads(THREADS)
    step = CONTESTANTS[name]()
    for _ in range(WARM_UP):
        step()
    peak(2)
    peaks, seconds, loss = peak(), [], 0.0
    for _ in range(STEPS):
        began = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - began)
    peaks += peak()
    speed, most = BATCH * CONTEXT / statistics.median(seconds), statistics.median(peaks)
    return {"tokens_per_second": speed, "peak": most, "of_peak": speed * flops_per_token() / most, "loss": loss}


if __name__ == "__main__":
    options = arguments(__doc__ or "", repeats=5)
    if options.contestant:
        print(json.dumps(measure(options.contestant)))
    else:
        found = contest(__file__, list(CONTESTANTS), options.repeats)
        speed = {name: median(outcomes, "tokens_per_second") for name, outcomes in found.items()}
        flops = statistics.median(o["of_peak"] * o["peak"] for o in found["lilliput"])
        rows = [
            row(
                "training, share of the matmul peak",
                flops,
                median(found["lilliput"], "peak"),
                "2048 x 2048 matmul",
                "FLOP/s",
            )
        ]
        rows[0]["ratio"] = median(found["lilliput"], "of_peak")  # median of the processes' ratios
        rows += [
            row(f"training, compared with {name}", speed["lilliput"], speed[name], name, "tokens/s")
            for name in ("gpt2", "gpt2 + our settings")
        ]
        show(rows, options.json)
