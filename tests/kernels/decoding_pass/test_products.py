"""The arithmetic of the numba engine, compared with NumPy in float64 and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lilliput.decoding.engines.compiled_weights import in_panels
from lilliput.kernels.arithmetic import exponential
from lilliput.kernels.decoding_pass import layout
from lilliput.kernels.decoding_pass.products import (
    activate,
    cap_logits,
    error_function,
    multiply_floats,
    multiply_integers,
    normalise,
    quantise,
)
from lilliput.kernels.registers import PAIR, PANEL, padded
from lilliput.kernels.tiles import compiled


@pytest.mark.parametrize(("depth", "panels"), [(1, 1), (7, 3), (288, 9), (33, 5)])
def test_products_of_floats(depth: int, panels: int) -> None:
    """For every number of rows: a row gives the same bits alone and with others."""
    random = np.random.default_rng(0)
    outputs = panels * PANEL
    x = random.standard_normal((14, depth)).astype(np.float32)
    w = random.standard_normal((outputs, depth)).astype(np.float32)
    packed = np.ascontiguousarray(w.reshape(panels, PANEL, depth).transpose(0, 2, 1)).ravel()
    alone = np.zeros((14, outputs), np.float32)
    for row in range(14):
        multiply_floats(x[row], (0, depth), 1, depth, packed, 0, alone[row], (0, outputs), (0, panels))
    np.testing.assert_allclose(alone, x.astype(np.float64) @ w.T.astype(np.float64), atol=1e-4)
    for rows in range(1, 15):
        out = np.full((rows, outputs + 3), 7.0, np.float32)
        for part in ((0, panels // 2), (panels // 2, panels)):  # in two parts, as two threads would
            multiply_floats(x.ravel(), (0, depth), rows, depth, packed, 0, out.ravel(), (0, outputs + 3), part)
        assert np.array_equal(out[:, :outputs], alone[:rows])
        assert (out[:, outputs:] == 7.0).all(), "only the panels are written"


@pytest.mark.parametrize(("depth", "panels"), [(2, 1), (16, 5), (38, 2), (288, 3), (1152, 2)])
def test_integer_products_are_exact(depth: int, panels: int) -> None:
    random = np.random.default_rng(1)
    outputs, most = panels * PANEL, min(32767, (2**31 - 1) // (127 * depth))
    x = random.integers(-most, most + 1, (14, depth)).astype(np.int16)
    w = random.integers(-127, 128, (outputs, depth)).astype(np.int8)
    x[0], w[0] = most, 127  # the largest possible sum
    exact = x.astype(np.int64) @ w.T.astype(np.int64)
    assert exact.max() < 2**31
    packed = np.ascontiguousarray(w.reshape(panels, PANEL, depth // PAIR, PAIR).transpose(0, 2, 1, 3)).ravel()
    for rows in range(1, 15):
        out = np.full((rows, outputs + 3), 7.0, np.float32)
        for part in ((0, panels // 2), (panels // 2, panels)):
            multiply_integers(x.ravel(), (0, depth), rows, depth, packed, 0, out.ravel(), (0, outputs + 3), part)
        assert np.array_equal(out[:, :outputs], exact[:rows].astype(np.float32))
        assert (out[:, outputs:] == 7.0).all(), "only the panels are written"


def test_quantised_rows() -> None:
    random = np.random.default_rng(2)
    depth, rows = 37, 3
    step = padded(depth, PAIR)
    scratch = np.zeros(200, np.float32)
    x = random.standard_normal((rows, depth)).astype(np.float32) * np.array([[1.0], [1e-4], [0.0]], np.float32)
    scratch[: rows * depth] = x.ravel()
    shorts = np.full(200, 5, np.int16)
    quantise(scratch, (0, depth), rows, depth, shorts, (0, step), 150)
    whole, scales = shorts[: step * rows].reshape(rows, step), scratch[150 : 150 + rows, None]
    assert (whole[:, depth:] == 0).all() and (shorts[step * rows :] == 5).all()
    assert np.abs(whole).max() <= 32767
    np.testing.assert_allclose(whole[:, :depth] * scales, x, atol=float(scales.max()))


def test_quantised_rows_do_not_depend_on_alignment() -> None:
    """Compiled loops have several versions, which are selected by the alignment of arrays."""
    random, depth = np.random.default_rng(4), 45
    row = random.standard_normal(depth).astype(np.float32)
    outcomes = set()
    for offset in range(40):
        for rows in (1, 3, 32):
            x = np.zeros(4000, np.float32)
            x[offset : offset + rows * depth] = np.tile(row, rows)
            memory = np.zeros(32 * 48 + 64, np.int16)
            quantise(x, (offset, depth), rows, depth, memory, (offset % 7, 48), 3900)
            for number in range(rows):
                outcomes.add(memory[offset % 7 + number * 48 :][:48].tobytes() + x[3900 + number].tobytes())
    assert len(outcomes) == 1


@compiled()
def take_exponentials(x, out):  # type: ignore[no-untyped-def]
    for k in range(len(x)):
        out[k] = exponential(x[k])


@compiled()
def take_errors(x, out):  # type: ignore[no-untyped-def]
    for k in range(len(x)):
        out[k] = error_function(x[k])


def test_exponential_and_error_function() -> None:
    x = np.concatenate((np.linspace(-87, 88, 100_001), [0.0, -1e-7, 1e-7])).astype(np.float32)
    out = np.zeros_like(x)
    take_exponentials(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=3e-7)
    take_exponentials(np.array([-1e30, -200.0], np.float32), out)
    assert (out[:2] < 1e-37).all() and (out[:2] >= 0).all()
    x = np.linspace(-6, 6, 100_001).astype(np.float32)
    take_errors(x, out := np.zeros_like(x))
    np.testing.assert_allclose(out, torch.erf(torch.from_numpy(x).double()).numpy(), atol=5e-7)


@pytest.mark.parametrize(
    ("kind", "function"),
    [(layout.RELU, F.relu), (layout.GELU, F.gelu), (layout.RELU2, lambda x: F.relu(x) ** 2), (layout.SWIGLU, None)],
)
def test_activations(kind: int, function: object) -> None:
    wide = torch.randn(4 * PANEL, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    given = wide.float().numpy()
    expected = function(wide) if callable(function) else F.silu(wide[: 2 * PANEL]) * wide[2 * PANEL :]
    scratch = np.zeros(8 * PANEL, np.float32)
    scratch[: 4 * PANEL] = in_panels(given[:, None], kind == layout.SWIGLU)[:, 0]
    for panels in ((0, 2), (2, 4)):
        activate(kind, scratch, 0, 4 * PANEL, panels)
    np.testing.assert_allclose(scratch[4 * PANEL :][: len(expected)], expected.numpy(), atol=3e-6)


@pytest.mark.parametrize("cap", [3.0, 15.0, 1000.0])
def test_soft_cap(cap: float) -> None:
    x = np.concatenate((np.linspace(-200, 200, 1001), np.linspace(-1, 1, 1001))).astype(np.float32)
    out = x.copy()
    cap_logits(np.float32(cap), out, 0, len(out))
    np.testing.assert_allclose(out, cap * np.tanh(x.astype(np.float64) / cap), rtol=5e-7)


@pytest.mark.parametrize("kind", [layout.NO_NORM, layout.LAYER_NORM, layout.RMS_NORM])
def test_norms(kind: int) -> None:
    random, width = np.random.default_rng(3), 37
    x, weights, biases = (random.standard_normal(width).astype(np.float32) for _ in range(3))
    scratch, floats = np.concatenate((x * 3, np.zeros(width, np.float32))), np.concatenate((weights, biases))
    normalise(kind, floats, 0, scratch, 0, width, width)
    given, weight, bias = (torch.from_numpy(part).double() for part in (x * 3, weights, biases))
    expected = {
        layout.NO_NORM: given,
        layout.LAYER_NORM: F.layer_norm(given, (width,), weight, bias, eps=1e-5),
        layout.RMS_NORM: F.rms_norm(given, (width,), weight, eps=1e-5),
    }[kind]
    np.testing.assert_allclose(scratch[width:], expected.numpy(), atol=3e-6)
    assert np.array_equal(scratch[:width], x * 3)
