#!/usr/bin/env python3
"""Draws the figures of the benchmarks, each as SVG and PNG.

    pip install matplotlib
    python3 crates/rmq-bench/plot.py RESULTS [--out FOLDER]

RESULTS is a CSV file, or a folder with `results.csv`. Of `results.csv`, which `rmq-bench` writes, it draws each section that is there:
search, build time, memory, warp-local queuing, heat maps, host to host, crossover. Of the file that the engine's benchmark writes
(`RMQ_BENCH_CSV`), it draws times of all contenders. Figures go to the folder of the CSV file unless --out names another.
"""

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Okabe and Ito's palette, which is distinct also with colour-blindness, and one more.
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#783c1e"]
GREY = "#5a5a5a"
LIMIT = "limit: two 128-byte reads"

plt.rcParams.update({
    "axes.axisbelow": True,
    "axes.edgecolor": "#28282c",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.color": "#e4e4e8",
    "legend.frameon": False,
    "savefig.dpi": 200,
    # Text stays text, and the same data gives the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "rmq-bench",
})


def save(figure, out, name):
    for kind in ("svg", "png"):
        figure.savefig(out / f"{name}.{kind}", metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)
    print(out / f"{name}.svg")


def short(number):
    """A number with three significant digits, without an exponent."""
    digits = max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:.{digits}f}"


def significant(number):
    """A label of an axis: without digits that say nothing."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def power(exponent):
    return f"$2^{{{exponent}}}$"


def line_plot(out, name, title, x_label, y_label, lines, *, log_y=True, x_format=power):
    """Draws lines of (log2 x, y), from a dictionary by name; the limit is dashed. Empty lines are left out."""
    lines = {line: sorted(points) for line, points in lines.items() if points}
    if not lines:
        return
    figure, axes = plt.subplots(figsize=(9, 4.4))
    for number, (line, points) in enumerate(lines.items()):
        style = {"color": GREY, "linestyle": "--"} if line == LIMIT else {"color": COLORS[number % len(COLORS)], "marker": "o"}
        axes.plot(*zip(*points), label=line, linewidth=2, markersize=5, **style)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    xs = sorted({x for points in lines.values() for x, _ in points})
    step = (xs[-1] - xs[0]) // 12 + 1
    ticks = range(xs[0], xs[-1] + 1, step)
    axes.set_xticks(list(ticks), [x_format(x) for x in ticks])
    if log_y:
        axes.set_yscale("log")
        ys = [y for points in lines.values() for _, y in points]
        decades = math.log10(max(ys) / min(ys))
        steps = [1] if decades > 5 else [1, 3] if decades > 2.5 else [1, 2, 5] if decades > 1 else [1, 1.5, 2, 3, 4, 5, 6, 8]
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.08 * max(y for points in lines.values() for _, y in points))
    # Beside the lines, in the order of their ends.
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: -lines[labels[i]][-1][1])
    axes.legend([handles[i] for i in order], [labels[i] for i in order], loc="upper left", bbox_to_anchor=(1.01, 1))
    save(figure, out, name)


def heat_map(out, name, title, cells):
    """Draws ns per query by (group, chunk). Colours are logarithmic, so that an outlier does not hide a factor of two."""
    groups, chunks = (sorted({cell[i] for cell in cells}) for i in range(2))
    table = [[cells.get((group, chunk), math.nan) for chunk in chunks] for group in groups]
    figure, axes = plt.subplots(figsize=(9, 4.4))
    low, high = min(cells.values()), max(cells.values())
    norm = LogNorm(low, max(high, low * 1.001))
    image = axes.imshow(table, norm=norm, aspect="auto", origin="lower", cmap="viridis")
    for row, numbers in enumerate(table):
        for column, number in enumerate(numbers):
            if not math.isnan(number):
                color = "white" if norm(number) < 0.55 else "#28282c"
                axes.text(column, row, short(number), ha="center", va="center", color=color)
    axes.set(title=title, xlabel="entries of a chunk", ylabel="threads of a group")
    axes.set_xticks(range(len(chunks)), chunks)
    axes.set_yticks(range(len(groups)), groups)
    axes.grid(False)
    bar = figure.colorbar(image, label="ns a query")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    save(figure, out, name)


def grouped(rows, *columns):
    """Rows by their values of these columns, in order of appearance."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


def lines_of(rows, x, y):
    """Points (x(row), y(row)) by contender; none where y is absent or 0."""
    lines = {}
    for row in rows:
        line = lines.setdefault(row["contender"], [])
        if number := y(row):
            line.append((x(row), number))
    return lines


def number(row, column):
    return float(row[column] or 0)


def log2_n(row):
    return int(row["log2_n"])


def ns(row):
    return number(row, "ns_per_query")


CASE = ("result", "workload", "key", "data")


def case_title(result, workload, key, data):
    return f"{result} of {data} {key} values, {workload} ranges"


def plot_comparison(rows, out):
    """Draws the figures of `results.csv`."""
    sections = {name: rows for (name,), rows in grouped(rows, "section").items()}
    values = "values of the column"
    searches = sections.get("limit", []) + sections.get("search", [])
    for case, found in grouped(searches, *CASE).items():
        title = case_title(*case)
        title = title[0].upper() + title[1:]
        line_plot(out, "-".join(("search", *case)), title, values, "ns a query", lines_of(found, log2_n, ns))
    # An index does not depend on the ranges.
    for (result, key, data), found in grouped(searches, "result", "key", "data").items():
        first = found[0]["workload"]
        found = [row for row in found if row["workload"] == first]
        purpose, file = f"{result} of {data} {key} values", f"{result}-{key}-{data}"
        build = lines_of(found, log2_n, lambda row: number(row, "build_ms"))
        line_plot(out, f"build-{file}", f"Build an index for the {purpose}", values, "ms", build)
        memory = lines_of(found, log2_n, lambda row: number(row, "index_bytes") / number(row, "column_bytes") * 100)
        line_plot(out, f"memory-{file}", f"Memory of an index for the {purpose}", values, "percent of the column", memory, log_y=False)
    for case, found in grouped(sections.get("queuing", []), *CASE).items():
        title = f"GPU-RMQ (CL): {case_title(*case)}"
        line_plot(out, "-".join(("queuing", *case)), title, values, "ns a query", lines_of(found, log2_n, ns), log_y=False)
    for (*case, n), found in grouped(sections.get("heat", []), *CASE, "log2_n").items():
        cells = {(int(row["group"]), int(row["chunk"])): ns(row) for row in found}
        title = f"GPU-RMQ (CL), ns a query: {case_title(*case)}, n = {power(n)}"
        heat_map(out, "-".join(("heat", *case, f"2p{n}")), title, cells)
    for (*case, n), found in grouped(sections.get("trip", []), *CASE, "log2_n").items():
        title = f"Host to host: {case_title(*case)}, n = {power(n)}"
        powers = [row for row in found if int(row["threads"]).bit_count() == 1]
        lines = lines_of(powers, lambda row: int(row["threads"]).bit_length() - 1, lambda row: 1 / ns(row))
        name = "-".join(("trip", *case, f"2p{n}"))
        line_plot(out, name, title, "threads that send queries", "billion queries a second", lines, log_y=False, x_format=lambda x: str(2**x))
    for (*case, n), found in grouped(sections.get("crossover", []), *CASE, "log2_n").items():
        title = f"Time of a batch: {case_title(*case)}, n = {power(n)}"
        lines = lines_of(found, lambda row: int(row["queries"]).bit_length() - 1, lambda row: number(row, "seconds") * 1e6)
        line_plot(out, "-".join(("crossover", *case, f"2p{n}")), title, "queries", "microseconds", lines)


# The contenders of the engine's benchmark; a scan is off the scale.
ENGINE_COLORS = {
    "engine, value": "#1b6ca8",
    "engine, leftmost position": "#7fb3d8",
    "sparse table, value": "#8a8a8a",
    "segment tree, value": "#c28f2c",
    "vers-vecs FastRmq, position": "#a8503c",
}


def plot_engine(rows, out):
    """Draws the figures of the engine's benchmark: for each type and length of the column, a panel for each kind of data."""
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
                axes.axhline(reference[0], color="black", linestyle="--", linewidth=1, label="ref2: two random cache lines")
            axes.set(title=data, yscale="log", ylabel="ns a query", xlabel="ranges", ylim=(0.7 * min(times.values()), None))
            axes.set_xticks(range(len(ranges)), ranges)
            axes.grid(False, axis="x")
            axes.yaxis.set_major_locator(LogLocator(subs=[1, 2, 5]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        figure.suptitle(f"Nanoseconds a query, {value_type}, n = {power(n)}, one thread")
        handles, labels = all_axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        save(figure, out, "engine" if len(sizes) == 1 else f"engine-{value_type}-2p{n}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    path = args.results / "results.csv" if args.results.is_dir() else args.results
    out = args.out or path.parent
    out.mkdir(parents=True, exist_ok=True)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        parser.exit(message=f"{path} has no measurements\n")
    if "section" in rows[0]:
        plot_comparison(rows, out)
    elif "contender" in rows[0]:
        plot_engine(rows, out)
    else:
        parser.error(f"{path} is no file of rmq-bench or of the engine's benchmark")


if __name__ == "__main__":
    main()
