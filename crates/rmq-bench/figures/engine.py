"""The figure of the engine's benchmark (`benches/engine`)."""

import math
import sys
from collections import defaultdict

from plots import GREY, power, pyplot
from results import read
from text import significant

# The contenders of the engine's benchmark; a scan is off the scale.
ENGINE_COLORS = {
    "engine, value": "#1b6ca8",
    "engine, leftmost position": "#7fb3d8",
    "sparse table, value": "#8a8a8a",
    "segment tree, value": "#c28f2c",
    "vers-vecs FastRmq, position": "#a8503c",
}


def grouped(rows, *columns):
    """Rows by their values of these columns, in order of appearance."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


def draw(path, out):
    """Draws, for each type and length of the column, a panel for each kind of data, as SVG and PNG."""
    plt = pyplot()
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    rows = read(path)
    if not rows or "ranges" not in rows[0]:
        sys.exit(f"error: {path} is no file of the engine's benchmark")
    sizes = grouped(rows, "type", "log n")
    for (value_type, n), found in sizes.items():
        panels = {data: rows for (data,), rows in grouped(found, "data").items()}
        figure, all_axes = plt.subplots(
            math.ceil(len(panels) / 2), min(len(panels), 2), figsize=(10, 3 * math.ceil(len(panels) / 2) + 0.6), sharey=True, squeeze=False
        )
        for axes in all_axes.flat[len(panels):]:
            axes.set_visible(False)
        for axes, (data, panel) in zip(all_axes.flat, panels.items()):
            ranges = list(dict.fromkeys(row["ranges"] for row in panel))
            times = {(row["contender"], row["ranges"]): float(row["ns"]) for row in panel}
            shown = [name for name in ENGINE_COLORS if any((name, r) in times for r in ranges)]
            width = 0.8 / max(len(shown), 1)
            for i, name in enumerate(shown):
                lefts = [g + (i - (len(shown) - 1) / 2) * width for g in range(len(ranges))]
                heights = [times.get((name, r), math.nan) for r in ranges]
                axes.bar(lefts, heights, width * 0.92, color=ENGINE_COLORS[name], label=name)
            reference = [float(row["ns"]) / float(row["ratio"]) for row in panel if float(row["ratio"])]
            if reference:
                axes.axhline(reference[0], color=GREY, linestyle="--", linewidth=1, label="ref2: two random cache lines")
            axes.set(title=data, yscale="log", ylabel="ns a query", xlabel="ranges", ylim=(0.7 * min(times.values()), None))
            axes.set_xticks(range(len(ranges)), ranges)
            axes.grid(False, axis="x")
            axes.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        figure.suptitle(f"Nanoseconds a query, {value_type}, n = {power(n)}, one thread")
        handles, labels = all_axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        name = "engine" if len(sizes) == 1 else f"engine-{value_type}-2p{n}"
        out.mkdir(parents=True, exist_ok=True)
        for kind in ("svg", "png"):
            figure.savefig(out / f"{name}.{kind}", metadata={"Date": None} if kind == "svg" else None, dpi=200)
        plt.close(figure)
