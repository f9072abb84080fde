"""Draw the loss of a run and its floor as SVG: `python docs/draw_curve.py runs/demo > docs/demo.svg`.

Reads metrics.jsonl only and needs no plotting library. The README uses the picture.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 360, 64, 150, 28, 48


def draw(run: Path) -> str:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    sampled = [event for event in events if event["event"] == "evaluation" and not event["whole"]]
    final = next(event for event in reversed(events) if event["event"] == "evaluation" and event["whole"])
    per_nat = final["bits_per_byte"] / final["loss"]
    seconds = {event["step"]: event["seconds"] for event in steps}
    train = [(event["seconds"], event["loss"] * per_nat) for event in steps]
    held_out = [(seconds[event["step"]], event["bits_per_byte"]) for event in sampled if event["step"] in seconds]
    floor = final["floor"]
    longest, low, high = train[-1][0], floor * 0.95, floor * 1.6  # higher values occur only in the first seconds
    train = [(when, value) for when, value in train if value < high]

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / longest

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low) / math.log(high / low)

    def line(points: list[tuple[float, float]], colour: str, width: float) -> str:
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        return (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>'
        )

    def text(a: float, b: float, words: str, colour: str = "#57606a", anchor: str = "start") -> str:
        return f'<text x="{a:.1f}" y="{b:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 18, "bits per byte (log scale) by minutes of training"),
    ]
    for value in [0.01 * hundredth for hundredth in range(2, 400, 2)]:
        if low <= value <= high:
            across = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
            parts += [f'<line {across} stroke="#e6e8eb"/>', text(LEFT - 8, y(value) + 4, f"{value:.2f}", anchor="end")]
    for minute in range(int(longest / 60) + 1):
        parts.append(text(x(60 * minute), HEIGHT - BOTTOM + 20, f"{minute}", anchor="middle"))
    parts += [
        line(train, "#9ec5e8", 1.2),
        line(held_out, "#0a5ea8", 2.5),
        line([(0.0, floor), (longest, floor)], "#c2410c", 1.5),
        text(WIDTH - RIGHT + 8, y(final["bits_per_byte"]) - 16, "training batches", "#5b94c4"),
        text(WIDTH - RIGHT + 8, y(final["bits_per_byte"]) + 2, f"validation {final['bits_per_byte']:.3f}", "#0a5ea8"),
        text(WIDTH - RIGHT + 8, y(final["bits_per_byte"]) + 20, f"floor {floor:.3f}", "#c2410c"),
        "</svg>",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
