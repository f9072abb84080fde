"""Gradient checkpointing: of a block, or of its feed-forward, only the input is kept for the backward pass (Chen et
al. 2016).


Owns: running a part of the model so that what autograd would save is dropped, and computed again, bit for
bit, when the backward pass first asks for it; which parts are run so; measuring what is kept; compiling. Does
not own: the parts (`transformer`), or when a setting asks for it (`training.session`).

The graph is the one that a plain forward pass makes: hooks on saved tensors leave stubs in it, and whoever
watches its nodes (DDP, FSDP2) sees what it always sees. What a part depends on besides its input is restored
when it runs again: the random states and autocast. Its weights are asked for then, too, so that FSDP2 may
free and gather them in between.
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
    """Of every `every` blocks, from the first on, recompute one, or its feed-forward; None: keep everything.

    The last block is the one to spare: its tensors are needed at once, when those of all others are still there.
    """
    for number, block in enumerate(blocks_of(model)):
        chosen = kind if number % every == 0 else None
        block.run_block = run_again if chosen == "block" else run_straight
        block.run_feed_forward = run_again if chosen == "feed-forward" else run_straight


def use_compile(model: Transformer) -> None:
    """Compile the halves of the blocks: whatever runs them, and however little of them is kept, is around what is compiled.

    Names of weights stay. Numbers differ from those of a plain run by rounding, and dropout draws otherwise.
    """
    try:
        torch.compile(torch.neg)(torch.ones(2, device=model.device))  # seconds, where the real thing takes tens of them
    except RuntimeError as error:
        what = f"torch.compile does not work on this machine: {str(error).splitlines()[0]}"
        fix = "set train.compile to false"
        raise UserError(what, None, fix=fix, code="device.missing", setting="train.compile") from error
    # All blocks share one function, whose variants (windows, packed or plain rows, with and without gradient, a length that
    # is fixed or not) are a few; beyond torch's own limit of eight it would give up and warn at length.
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(run_straight)
    windows = set(model.windows)

    def run_compiled(part: Part, x: Tensor, state: PassState) -> Tensor:
        if state.cache is not None or state.capture is not None:  # decoding has another length at every step
            return part(x, state)
        for window in windows:  # a part that makes a mask would be compiled apart from one that finds it
            _ = state.sight(window, state.pos).mask
        return compiled(part, x, state)

    for block in blocks_of(model):
        block.call = run_compiled


def measure_kept(model: Transformer, run: Callable[[], Tensor]) -> int:
    """Bytes that a forward pass leaves for its backward pass, the model's own tensors aside, each storage once."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        out = run()
    assert out.requires_grad, "nothing is kept where no gradient is wanted"
    return sum(found.values())


def run_again(part: Part, x: Tensor, state: PassState) -> Tensor:
    """part(x, now), of which x alone is kept. A cache or a capture would be filled twice: with them it runs straight."""
    if not torch.is_grad_enabled() or state.cache is not None or state.capture is not None:
        return part(x, state)
    segment = Segment(part, x, state)
    with saved_tensors_hooks(segment.drop, Stub.take):
        return part(x, state)


class Stub:
    """What the graph holds for a tensor that was dropped: where it came from, and by which signs to know it again.

    Between recomputation and use it holds the tensor itself. Stubs die with the nodes of the graph that hold them, and so
    do their tensors, however much of the graph a backward pass went through.
    """

    def __init__(self, segment: Segment, tensor: Tensor) -> None:
        self.segment, self.signs = segment, signs(tensor)
        self.tensor: Tensor | None = None

    def take(self) -> Tensor:
        if self.tensor is None:  # also in a second backward pass through a graph that was retained
            self.segment.compute_again()
        tensor, self.tensor = self.tensor, None
        assert tensor is not None
        return tensor


def signs(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype, int]:
    """A weight that was changed in between has another version: autograd would refuse it, and so must we."""
    return tuple(tensor.shape), tensor.dtype, tensor._version


class Enough(Exception):
    """The last tensor that is needed is there: what follows it, often a large product, need not be computed."""


class Segment:
    """One run of a part: its input, its surroundings, and the stubs of what it saved, in order.

    The stubs hold the segment and not the other way round, so that it ends with the last of them.
    """

    def __init__(self, part: Part, x: Tensor, state: PassState) -> None:
        self.part, self.now = part, state
        self.kept = keep(x)
        self.surroundings = Surroundings.of(x.device)
        self.stubs: list[weakref.ref[Stub]] = []

    def drop(self, tensor: Tensor) -> Stub:
        stub = Stub(self, tensor)
        self.stubs.append(weakref.ref(stub))
        return stub

    def compute_again(self) -> None:
        """Run the part once more, with a graph that is thrown away at once, and give each living stub its tensor."""
        (x,) = self.kept.saved_tensors
        waiting = iter(self.stubs)
        left = len(self.stubs)

        def hand_over(tensor: Tensor) -> None:
            nonlocal left
            left -= 1
            if (stub := next(waiting)()) is not None:
                if stub.signs != signs(tensor):
                    raise RuntimeError(
                        differently(f"(shape, type, version) {stub.signs} was saved, now {signs(tensor)}")
                    )
                stub.tensor = tensor.detach()
            if not left:
                raise Enough

        with self.surroundings.restored(), saved_tensors_hooks(hand_over, never), suppress(Enough):
            self.part(x.detach().requires_grad_(x.requires_grad), self.now)
        if left:
            raise RuntimeError(differently(f"{len(self.stubs)} tensors were saved, now {len(self.stubs) - left}"))


def differently(how: str) -> str:
    return f"a recomputed part of the model did not do the same again: {how}; were its weights or its mode changed in between?"


def never(_: None) -> Tensor:
    raise AssertionError("nobody goes backward through a graph of recomputation")


class Keep(torch.autograd.Function):
    """A node beside the graph that does nothing but save a tensor in autograd's own way: a change in place is noticed, and
    hooks around this segment (those of another one, say, or of somebody who counts bytes) see it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise AssertionError("this node is in nobody's graph")


def keep(x: Tensor) -> Any:
    anchor = torch.empty(0, requires_grad=True)  # x may need no gradient, and a node there must be
    return Keep.apply(anchor, x).grad_fn  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Surroundings:
    """What a forward pass depends on besides its arguments: the random states of CPU and device, and autocast."""

    device: torch.device
    chance: tuple[Tensor, ...]
    autocast: bool
    autocast_dtype: torch.dtype
    autocast_cache: bool

    @staticmethod
    def of(device: torch.device) -> Surroundings:
        kind = device.type
        return Surroundings(
            device,
            random_states(device),
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As they were, inside; as they are, after."""
        before = random_states(self.device)
        casting = torch.autocast(self.device.type, self.autocast_dtype, self.autocast, self.autocast_cache)
        try:
            set_random_states(self.device, self.chance)
            with torch.enable_grad(), casting:
                yield
        finally:
            set_random_states(self.device, before)


def random_states(device: torch.device) -> tuple[Tensor, ...]:
    """5 kB of the CPU, and a few bytes of a GPU."""
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
