#!/usr/bin/env python3
"""Draws benches/engine.svg from the CSV file that the engine's benchmark writes.

    RMQ_BENCH_CSV=engine.csv cargo bench --no-default-features --bench engine
    python3 benches/plot.py engine.csv [type [log n]] > benches/engine.svg

Needs nothing but Python.
"""

import csv
import math
import sys
from collections import defaultdict

COLOURS = {
    "engine, value": "#1b6ca8",
    "engine, leftmost position": "#7fb3d8",
    "sparse table, value": "#8a8a8a",
    "segment tree, value": "#c28f2c",
    "vers-vecs FastRmq, position": "#a8503c",
}
RANGES = ["small", "medium", "large", "mixed"]
WIDTH, HEIGHT = 430, 250
LEFT, TOP = 50, 60
LOW, HIGH = 4.0, 2000.0


def height(ns):
    """A share of the panel, on a logarithmic scale."""
    ns = min(max(ns, LOW), HIGH)
    return math.log(ns / LOW) / math.log(HIGH / LOW)


def panel(out, x, y, title, rows, reference):
    inner = HEIGHT - 60
    out.append(f'<text x="{x}" y="{y - 8}" font-weight="bold">{title}</text>')
    for ns in [5, 10, 20, 50, 100, 200, 500, 1000]:
        at = y + inner * (1 - height(ns))
        out.append(f'<line x1="{x}" x2="{x + WIDTH - 70}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{x - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#666">{ns}</text>')
    group = (WIDTH - 70) / len(RANGES)
    bar = group * 0.8 / len(COLOURS)
    for g, ranges in enumerate(RANGES):
        for b, (name, colour) in enumerate(COLOURS.items()):
            ns = rows.get((name, ranges))
            if ns is None:
                continue
            tall = inner * height(ns)
            left = x + g * group + group * 0.1 + b * bar
            out.append(
                f'<rect x="{left:.1f}" y="{y + inner - tall:.1f}" width="{bar - 1:.1f}" height="{tall:.1f}" '
                f'fill="{colour}"><title>{name}, {ranges}: {ns:.1f} ns</title></rect>'
            )
        middle = x + (g + 0.5) * group
        out.append(f'<text x="{middle:.1f}" y="{y + inner + 16}" text-anchor="middle">{ranges}</text>')
    at = y + inner * (1 - height(reference))
    out.append(
        f'<line x1="{x}" x2="{x + WIDTH - 70}" y1="{at:.1f}" y2="{at:.1f}" stroke="#000" stroke-dasharray="5 3"/>'
    )


def main():
    path = sys.argv[1]
    kind = sys.argv[2] if len(sys.argv) > 2 else "f32"
    size = sys.argv[3] if len(sys.argv) > 3 else "24"
    tables = defaultdict(dict)
    references = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if (row["type"], row["log n"]) != (kind, size):
                continue
            data, ns, ratio = row["data"], float(row["ns"]), float(row["ratio"])
            tables[data][(row["contender"], row["ranges"])] = ns
            if row["contender"] == "engine, value":
                references[data] = ns / ratio
    columns = 2
    wide = LEFT + columns * WIDTH
    tall = TOP + math.ceil(len(tables) / columns) * HEIGHT + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{tall}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="bold">Nanoseconds a query, {kind}, n = 2^{size}, '
        "one thread; dashed: two random cache lines (ref2)</text>",
    ]
    x = LEFT
    for name, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{x + 14}" y="35">{name}</text>')
        x += 30 + 6.4 * len(name)
    for i, (data, rows) in enumerate(tables.items()):
        x = LEFT + i % columns * WIDTH
        y = TOP + 10 + i // columns * HEIGHT
        panel(out, x, y, data, rows, references[data])
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
