#!/usr/bin/env python3
"""Draws the figures of the benchmarks, each as SVG and PNG, to be read on a light and on a dark page.

    pip install matplotlib
    python3 crates/rmq-bench/plot.py RESULTS [RESULTS ...] [--out FOLDER]

RESULTS is a CSV file, or a folder with `results.csv`. Of `results.csv`, which `rmq-bench` writes, it draws each section that is there:
search with ray-tracing pipelines, build time, memory, reads of groups of threads, warp-local queuing, heat maps, succinct indexes, host to host, crossover. Several of
them, from several machines, are merged into `merged.csv`, of which it draws our search and the better of CL and VL by device. Of the file
that the engine's benchmark writes (`RMQ_BENCH_CSV`), it draws times of all contenders. Figures go to the folder of the first file unless
--out names another.
"""

import argparse
import csv
import itertools
import math
import re
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

# Distinct also with colour-blindness, after Okabe and Ito, and of middle lightness, to be seen on white and on black.
COLORS = ["#2f86c8", "#dd6b20", "#12a07a", "#c46fae", "#cf9a12", "#49b3e8", "#a0704f", "#8f80dc"]
GREY = "#80878f"  # also of all text
TWO_READS, MODEL = "two random reads of 128 bytes", "model of ours: all reads"
OURS, CL, VL = "GPU ours", "GPU CL", "GPU VL"  # names have no commas in the file

# Lines that are not systems, and systems with other parameters: (colour, style). Others get the next colour.
STYLES = {TWO_READS: (GREY, "--"), MODEL: (GREY, ":"), OURS: (COLORS[0], "-"), CL: (COLORS[1], "-"), VL: (COLORS[2], "-")}

# Parts of the model are in the tables.
NOT_DRAWN = {"model of ours: caches", "model of ours: memory"}

plt.rcParams.update({
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.color": GREY,
    "legend.labelcolor": GREY,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "savefig.transparent": True,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
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
    """Draws lines of (log2 x, y), from a dictionary by name; what is no system is dashed. Empty lines are left out."""
    lines = {line: sorted(points) for line, points in lines.items() if points and line not in NOT_DRAWN}
    if not lines:
        return
    figure, axes = plt.subplots(figsize=(9, 4.4))
    taken = {STYLES[line][0] for line in lines if line in STYLES}
    colors = [color for color in COLORS if color not in taken] or COLORS
    free = itertools.product("os^D", colors)  # a colour that comes again has another marker
    for line, points in lines.items():
        # A system with another parameter has its colour.
        system = line.split(" t = ")[0]
        if line in STYLES:
            marker, (color, dashes) = "o", STYLES[line]
        elif system in STYLES:
            marker, color, dashes = "o", STYLES[system][0], ":"
        else:
            (marker, color), dashes = next(free), "-"
        axes.plot(*zip(*points), label=line, linewidth=2, markersize=5, color=color, linestyle=dashes, marker=None if color == GREY else marker)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    xs = sorted({x for points in lines.values() for x, _ in points})
    step = (xs[-1] - xs[0]) // 12 + 1
    ticks = xs if len(xs) <= 12 else range(xs[0], xs[-1] + 1, step)
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


def heat_maps(out, name, title, panels):
    """Draws, for each length of the column, ns per query by (kernel, threads of a group, entries of a chunk), coloured by the ratio to the best of that length."""
    kernels = sorted({cell[:2] for cells in panels.values() for cell in cells}, key=lambda kernel: (kernel[0] == "CL", kernel))
    chunks = sorted({cell[2] for cells in panels.values() for cell in cells})
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    figure, all_axes = plt.subplots(down, across, figsize=(1.2 + 4.2 * across, 0.8 + 2.9 * down), squeeze=False)
    # Logarithmic, so that an outlier does not hide a factor of two.
    norm = LogNorm(1, 4, clip=True)
    for axes in all_axes.flat[len(panels):]:
        axes.set_visible(False)
    for axes, (n, cells) in zip(all_axes.flat, sorted(panels.items())):
        best = min(cells.values())
        table = [[cells.get((*kernel, chunk), math.nan) / best for chunk in chunks] for kernel in kernels]
        image = axes.imshow(table, norm=norm, aspect="auto", origin="lower", cmap="viridis_r")
        for row, ratios in enumerate(table):
            for column, ratio in enumerate(ratios):
                if not math.isnan(ratio):
                    color = "white" if norm(ratio) > 0.45 else "#28282c"
                    axes.text(column, row, f"{short(ratio * best)}", ha="center", va="center", color=color, fontsize=7.5)
        axes.set(title=f"n = {power(n)}", xlabel="entries of a chunk")
        axes.set_xticks(range(len(chunks)), chunks)
        axes.set_yticks(range(len(kernels)), ["VL" if kernel == "VL" else f"CL, {group}" for kernel, group in kernels])
        axes.grid(False)
    figure.suptitle(title)
    bar = figure.colorbar(image, ax=all_axes, label="times the best of the length", extend="max")
    bar.ax.yaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 4]))
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


def total_bytes_a_value(row):
    if not row["index_bytes"]:
        return None
    return sum(number(row, column) for column in ("index_bytes", "build_bytes", "column_bytes")) / 2 ** log2_n(row)


def log2_threads(row):
    return round(math.log2(int(row["threads"])))


def ns(row):
    return number(row, "ns_per_query")


CASE = ("result", "workload", "key", "data")


def case_title(result, workload, key, data):
    return f"{result} of {data} {key} values, {workload} ranges"


def plot_comparison(rows, out):
    """Draws the figures of `results.csv`."""
    sections = {name: rows for (name,), rows in grouped(rows, "section").items()}
    values = "values of the column"
    searches = sections.get("limit", []) + sections.get("search", []) + sections.get("rays", [])
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
        line_plot(out, f"memory-{file}", f"Memory of an index for the {purpose}", values, "percent of the column", memory)
        total = lines_of(found, log2_n, total_bytes_a_value)
        line_plot(out, f"memory-total-{file}", f"Column, index and what only the build needs, for the {purpose}", values, "bytes a value", total)
    if reads := sections.get("reads"):
        lines = lines_of(reads, lambda row: int(row["group"]).bit_length() - 1, lambda row: int(row["group"]) * 4 / ns(row))
        title = "Random reads of groups of threads, 4 bytes a thread"
        line_plot(out, "reads", title, "threads of a group", "GB/s", lines, x_format=lambda x: str(2**x))
    for case, found in grouped(sections.get("queuing", []), *CASE).items():
        title = f"GPU-RMQ (CL): {case_title(*case)}"
        line_plot(out, "-".join(("queuing", *case)), title, values, "ns a query", lines_of(found, log2_n, ns))
    for case, found in grouped(sections.get("heat", []), *CASE).items():
        panels = defaultdict(dict)
        for row in found:
            panels[log2_n(row)][row["contender"], int(row["group"]), int(row["chunk"])] = ns(row)
        heat_maps(out, "-".join(("heat", *case)), f"GPU-RMQ, ns a query: {case_title(*case)}", panels)
    for (*case, n), found in grouped(sections.get("succinct", []), *CASE, "log2_n").items():
        lines = lines_of(found, log2_threads, lambda row: 1e3 / ns(row))
        title = f"Succinct indexes on the CPU: {case_title(*case)}, n = {power(n)}"
        line_plot(out, "-".join(("succinct", *case, f"2p{n}")), title, "threads", "million queries a second", lines, x_format=lambda x: str(2**x))
    for (*case, n), found in grouped(sections.get("trip", []), *CASE, "log2_n").items():
        title = f"Host to host: {case_title(*case)}, n = {power(n)}"
        lines = lines_of(found, log2_threads, lambda row: 1 / ns(row))
        name = "-".join(("trip", *case, f"2p{n}"))
        line_plot(out, name, title, "threads that send queries", "billion queries a second", lines, log_y=False, x_format=lambda x: str(2**x))
    for (*case, n), found in grouped(sections.get("crossover", []), *CASE, "log2_n").items():
        title = f"Time of a batch: {case_title(*case)}, n = {power(n)}"
        lines = lines_of(found, lambda row: int(row["queries"]).bit_length() - 1, lambda row: number(row, "seconds") * 1e6)
        line_plot(out, "-".join(("crossover", *case, f"2p{n}")), title, "queries", "microseconds", lines)


def short_device(name):
    """The name of a GPU without its memory and driver."""
    return re.sub(r" \d+GB.*", "", name.split(";")[0].removeprefix("NVIDIA ")) or "no GPU"


def plot_devices(rows, out):
    """Draws our search and the better of CL and VL, by device, from the results of several machines."""
    searches = [row for row in rows if row["section"] == "search" and row.get("gpu")]
    for case, found in grouped(searches, *CASE).items():
        lines = defaultdict(list)
        for (gpu, n), same in grouped(found, "gpu", "log2_n").items():
            times = {row["contender"]: ns(row) for row in same}
            if OURS in times:
                lines[f"ours, {short_device(gpu)}"].append((int(n), times[OURS]))
            if paper := [times[name] for name in (CL, VL) if name in times]:
                lines[f"the better of CL and VL, {short_device(gpu)}"].append((int(n), min(paper)))
        title = case_title(*case)
        line_plot(out, "-".join(("devices", *case)), title[0].upper() + title[1:], "values of the column", "ns a query", lines)


def merge(files, out):
    """Merges the results of several machines into one file; returns its rows."""
    rows, header = [], []
    for file in files:
        found = read(file)
        header += [column for column in found[0] if column not in header] if found else []
        rows += found
    with open(out / "merged.csv", "w", newline="") as merged:
        writer = csv.DictWriter(merged, header, restval="")
        writer.writeheader()
        writer.writerows(rows)
    print(out / "merged.csv")
    return rows


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


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
        save(figure, out, "engine" if len(sizes) == 1 else f"engine-{value_type}-2p{n}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    paths = [path / "results.csv" if path.is_dir() else path for path in args.results]
    path = paths[0]
    out = args.out or path.parent
    out.mkdir(parents=True, exist_ok=True)
    if len(paths) > 1:
        plot_devices(merge(paths, out), out)
        return
    rows = read(path)
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
