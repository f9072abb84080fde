"""Activation checkpointing: only the input of a block or feed-forward is saved for the backward pass (Chen et al. 2016).

Owns: running a part of the model so that tensors that autograd would save are dropped, and recomputed bit for bit when the
backward pass needs them; the selection of these parts; measuring the saved bytes; compiling blocks. Does not own: the parts
(`transformer`), or applying the settings (`training.session`).

The autograd graph is that of a plain forward pass, so DDP and FSDP2 work unchanged: hooks on saved tensors put stubs into
it. Recomputation restores what a part depends on besides its input: random states and autocast. It reads the weights again,
so that FSDP2 may free and gather them in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lilliput.errors import UserError
from lilliput.model.attention import PassState
from lilliput.model.transformer import Block, Part, Transformer, run_straight

Kind = Literal["block", "feed-forward"]


def use_recompute(model: Transformer, kind: Kind | None, every: int) -> None:
    """Recompute every `every`-th block or its feed-forward, starting with the first; None: save everything.

    Recomputing the last block saves no memory: its backward pass runs first, when all other blocks hold their tensors.
    """
    for number, block in enumerate(blocks_of(model)):
        chosen = kind if number % every == 0 else None
        block.run_block = run_recomputed if chosen == "block" else run_straight
        block.run_feed_forward = run_recomputed if chosen == "feed-forward" else run_straight


def use_compile(model: Transformer) -> None:
    """Compile attention and feed-forward of each block, inside recomputation.

    Names of weights stay the same. Results differ from an uncompiled run by rounding, and dropout draws other values.
    """
    try:
        torch.compile(torch.neg)(torch.ones(2, device=model.device))  # seconds; compiling the model takes tens of them
    except RuntimeError as error:
        what = f"train.compile requires a working torch.compile (got: {str(error).splitlines()[0]})"
        fix = "set train.compile to false"
        raise UserError(what, None, fix=fix, code="device.missing", setting="train.compile") from error
    # All blocks share one compiled function. Windows, packing, gradients and dynamic lengths need more variants of it than
    # torch's limit of eight.
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(run_straight)
    windows = set(model.windows)

    def run_compiled(part: Part, x: Tensor, state: PassState) -> Tensor:
        if state.cache is not None or state.capture is not None:  # decoding has a new length at every step
            return part(x, state)
        for window in windows:  # build all masks first: building one inside would be a further variant
            _ = state.visibility(window, state.pos).mask
        return compiled(part, x, state)

    for block in blocks_of(model):
        block.call = run_compiled


def measure_kept(model: Transformer, run: Callable[[], Tensor]) -> int:
    """Return the bytes that a forward pass saves for its backward pass, without parameters and buffers, each storage once."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        out = run()
    assert out.requires_grad, "nothing is saved without a gradient"
    return sum(saved.values())


def run_recomputed(part: Part, x: Tensor, state: PassState) -> Tensor:
    """Return part(x, state), saving only x. With a cache or a capture, which would be filled twice, nothing is recomputed."""
    if not torch.is_grad_enabled() or state.cache is not None or state.capture is not None:
        return part(x, state)
    segment = Segment(part, x, state)
    with saved_tensors_hooks(segment.drop, Stub.take):
        return part(x, state)


class Stub:
    """The placeholder of a dropped tensor in the autograd graph: its segment and its signature.

    It holds the tensor only between recomputation and use. Nodes of the graph own their stubs, so stubs and their tensors
    are freed with the nodes, also after a backward pass through a part of the graph.
    """

    def __init__(self, segment: Segment, tensor: Tensor) -> None:
        self.segment, self.signature = segment, signature(tensor)
        self.tensor: Tensor | None = None

    def take(self) -> Tensor:
        if self.tensor is None:  # also in a second backward pass through a retained graph
            self.segment.recompute()
        tensor, self.tensor = self.tensor, None
        assert tensor is not None
        return tensor


def signature(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Return shape, dtype and version: a weight that was changed in place has a new version, an error in autograd too."""
    return tuple(tensor.shape), tensor.dtype, tensor._version


class AllRecomputed(Exception):
    """Ends a recomputation after the last saved tensor: the rest, often a large product, is not needed."""


class Segment:
    """One run of a part: its input, its ambient state, and the stubs of the tensors that it saved, in order.

    Stubs refer to the segment, and the segment only weakly to stubs, so that it is freed with the last of them.
    """

    def __init__(self, part: Part, x: Tensor, state: PassState) -> None:
        self.part, self.state = part, state
        self.kept = keep(x)
        self.ambient = AmbientState.of(x.device)
        self.stubs: list[weakref.ref[Stub]] = []

    def drop(self, tensor: Tensor) -> Stub:
        stub = Stub(self, tensor)
        self.stubs.append(weakref.ref(stub))
        return stub

    def recompute(self) -> None:
        """Run the part again, with a temporary graph, and give each live stub its tensor."""
        (x,) = self.kept.saved_tensors
        waiting = iter(self.stubs)
        left = len(self.stubs)

        def restore(tensor: Tensor) -> None:
            nonlocal left
            left -= 1
            if (stub := next(waiting)()) is not None:
                if stub.signature != signature(tensor):
                    raise RuntimeError(
                        mismatch(f"(shape, dtype, version) {stub.signature} was saved, now {signature(tensor)}")
                    )
                stub.tensor = tensor.detach()
            if not left:
                raise AllRecomputed

        with self.ambient.restored(), saved_tensors_hooks(restore, forbid_backward), suppress(AllRecomputed):
            self.part(x.detach().requires_grad_(x.requires_grad), self.state)
        if left:
            raise RuntimeError(mismatch(f"{len(self.stubs)} tensors were saved, now {len(self.stubs) - left}"))


def mismatch(details: str) -> str:
    return f"recomputation differs from the forward pass: {details}; were weights or training mode changed in between?"


def forbid_backward(_: None) -> Tensor:
    raise AssertionError("the graph of a recomputation has no backward pass")


class Keep(torch.autograd.Function):
    """A node outside the graph that saves a tensor in autograd's own way, so that an in-place change is detected and hooks
    around this segment (an enclosing segment, or `measure_kept`) are called."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise AssertionError("this node is not part of a graph")


def keep(x: Tensor) -> Any:
    anchor = torch.empty(0, requires_grad=True)  # makes a node even if x needs no gradient
    return Keep.apply(anchor, x).grad_fn  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class AmbientState:
    """The global state that a forward pass depends on: random states of CPU and device, and autocast."""

    device: torch.device
    random: tuple[Tensor, ...]
    autocast: bool
    autocast_dtype: torch.dtype
    autocast_cache: bool

    @staticmethod
    def of(device: torch.device) -> AmbientState:
        kind = device.type
        return AmbientState(
            device,
            random_states(device),
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore this state inside the block, and the current random states after it."""
        before = random_states(self.device)
        casting = torch.autocast(self.device.type, self.autocast_dtype, self.autocast, self.autocast_cache)
        try:
            set_random_states(self.device, self.random)
            with torch.enable_grad(), casting:
                yield
        finally:
            set_random_states(self.device, before)


def random_states(device: torch.device) -> tuple[Tensor, ...]:
    """Return the random states of the CPU (5 kB) and of the device."""
    cpu = torch.get_rng_state()
    if device.type == "cuda":
        return cpu, torch.cuda.get_rng_state(device)
    if device.type == "mps":
        return cpu, torch.mps.get_rng_state()
    return (cpu,)


def set_random_states(device: torch.device, states: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])


def blocks_of(model: Transformer) -> list[Block]:
    return [cast(Block, block) for block in model.blocks]
