#!/usr/bin/env python3
"""Draws the figures of the GPU-RMQ paper from runs of `rmq-bench --measure paper`, one for each device, and writes them with tables into the docs.

    pip install matplotlib
    python3 crates/rmq-bench/paper_figures.py RESULTS [RESULTS ...] [--docs docs/benchmarks.md]

RESULTS is a folder with `results.csv`, or such a file; sections of a device may be in several. Figures have the paper's numbers, a panel for each device and a sentence of reading, and go to the folder that has the
name of the docs (docs/benchmarks); the text between the two marks in the docs is written anew, with the tables. Figures are SVG, to be read on a
light and on a dark page. What a run did not measure is left out.
"""

import argparse
import itertools
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

from plot import CL, COLORS, GREY, MODEL, OURS, TWO_READS, VL, grouped, log2_n, ns, number, plt, power, read, short, short_device, significant
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

BEGIN, END = "<!-- figures: written by paper_figures.py -->", "<!-- end of figures -->"

LCA = "GPU LCA (inlabel)"
RTXRMQ, BY_VALUE = "Vulkan RTXRMQ", "Vulkan RTXRMQ with planes at values"
PIPELINE, WITH_RAYS = "Vulkan CL as a pipeline without rays", "Vulkan CL with rays on the highest level"

# The paper's systems: name in the file -> (name in figures, colour, style).
SYSTEMS = {
    OURS: ("ours", COLORS[0], "-"),
    CL: ("GPU-RMQ (CL)", COLORS[1], "-"),
    VL: ("GPU-RMQ (VL)", COLORS[2], "-"),
    LCA: ("LCA (inlabel)", COLORS[3], "-"),
    RTXRMQ: ("RTXRMQ", COLORS[4], "-"),
    "GPU full scan": ("full scan", COLORS[6], "-"),
    "HRMQ": ("HRMQ, all threads", COLORS[7], "-"),
    "CPU": ("ours on the CPU, all threads", COLORS[5], "-"),
    TWO_READS: (TWO_READS, GREY, "--"),
    MODEL: ("model of our reads", GREY, ":"),
}

# Figures 13 and 14.
STEPS = {
    "CL warp-local queuing": ("CL", COLORS[1], "-"),
    "CL multi-load": ("CL, multi-load", COLORS[2], "-"),
    "CL without shuffles": ("CL without shuffles", COLORS[3], "-"),
    "CL without warp intrinsics": ("CL without warp intrinsics", COLORS[0], "-"),
    PIPELINE: ("CL as a ray-tracing pipeline, no rays", COLORS[5], "-"),
    WITH_RAYS: ("CL with rays on the highest level", COLORS[7], "-"),
    RTXRMQ: ("RTXRMQ", COLORS[4], "-"),
    BY_VALUE: ("RTXRMQ, planes at values, 2^15 a block", COLORS[6], ":"),
}


def system(row):
    """The system of a row: contenders on the CPU without their number of threads, RTXRMQ without its blocks; None for those with one thread."""
    name = row["contender"]
    if name.startswith(f"{RTXRMQ} 2^"):
        return RTXRMQ
    found = re.fullmatch(r"(CPU|HRMQ) (\d+) threads?", name)
    if not found:
        return name
    return found[1] if int(found[2]) > 1 else None


class Device:
    """The results of a device: rows of f32 uniform values, answered with values."""

    def __init__(self, name, rows):
        self.rows = [row for row in rows if (row["key"], row["data"], row["result"]) == ("f32", "uniform", "value")]
        if not self.rows:
            sys.exit(f"error: no results of {name} are for values of uniform f32 columns")
        self.reads = [row for row in rows if row["section"] == "reads"]
        self.name = name
        self.cpu = self.rows[0]["cpu"].replace(";", ",")

    def points(self, sections, workload, y, names):
        """Points (log2 n, y(row)) by system, in the order of `names`: of several settings the first, of times the least."""
        lines = {name: {} for name in names}
        for row in self.rows:
            if row["section"] in sections and row["workload"] == workload and system(row) in lines:
                if value := y(row):
                    points, n = lines[system(row)], log2_n(row)
                    points[n] = min(points.get(n, value), value) if y is ns else points.get(n, value)
        return {name: sorted(points.items()) for name, points in lines.items() if points}

    def search(self, workload, y=ns, names=tuple(SYSTEMS)):
        return self.points(("search", "limit", "rays"), workload, y, names)


def open_devices(paths):
    """Reads all results. Runs on the same device, of different sections, are put together."""
    by_device = defaultdict(list)
    for path in paths:
        for row in read(path / "results.csv" if path.is_dir() else path):
            by_device[short_device(row["gpu"])].append(row)
    return [Device(name, rows) for name, rows in by_device.items()]


def save(figure, folder, name):
    figure.savefig(folder / f"figure-{name}.svg", metadata={"Date": None})
    plt.close(figure)
    print(folder / f"figure-{name}.svg")


def logarithmic(axis, values):
    """Labels a logarithmic axis so that neither too few nor too many numbers are on it."""
    decades = math.log10(max(values) / min(values))
    steps = [1] if decades > 4 else [1, 3] if decades > 2 else [1, 2, 5] if decades > 1 else [1, 1.5, 2, 3, 4, 5, 6, 8]
    low, high = (math.floor(math.log10(end)) for end in (min(values), max(values)))
    ticks = [step * 10.0**exponent for exponent in range(low, high + 2) for step in steps]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if 0.7 * min(values) <= tick <= 1.4 * max(values)]))
    axis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
    axis.set_minor_locator(NullLocator())


def lines(folder, name, title, y_label, panels, styles, *, x_label="values of the column", x_format=power):
    """Draws a panel with lines of (log2 x, y) for each device; returns the name, or None if there are no lines."""
    panels = {device: found for device, found in panels.items() if found}
    if not panels:
        return None
    figure, all_axes = plt.subplots(1, len(panels), figsize=(1.4 + 3.9 * len(panels) + 2.6, 3.9), sharey=True, squeeze=False)
    shown = [line for line in styles if any(line in found for found in panels.values())]
    for axes, (device, found) in zip(all_axes.flat, panels.items()):
        for line in shown:
            if line in found:
                label, color, dashes = styles[line]
                axes.plot(*zip(*found[line]), label=label, color=color, linestyle=dashes, linewidth=2, markersize=4.5, marker=None if color == GREY else "o")
        axes.set(title=device, xlabel=x_label, yscale="log")
        xs = sorted({x for points in found.values() for x, _ in points})
        axes.set_xticks(xs, [x_format(x) for x in xs])
    all_axes.flat[0].set_ylabel(y_label)
    logarithmic(all_axes.flat[0].yaxis, [y for found in panels.values() for points in found.values() for _, y in points])
    figure.suptitle(title)
    handles = {}
    for axes in all_axes.flat:
        handles.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels())})
    order = [styles[line][0] for line in shown]
    figure.legend([handles[label] for label in order], order, loc="outside right center")
    save(figure, folder, name)
    return name


def heat_map(axes, table, norm, best):
    """Draws numbers in fields coloured by their ratio to the best; `best` is a number, or one for each column."""
    columns = len(table[0])
    bests = best if isinstance(best, list) else [best] * columns
    ratios = [[value / bests[column] for column, value in enumerate(row)] for row in table]
    image = axes.imshow(ratios, norm=norm, aspect="auto", origin="lower", cmap="viridis_r")
    for row, column in itertools.product(range(len(table)), range(columns)):
        if not math.isnan(table[row][column]):
            color = "white" if norm(ratios[row][column]) > 0.45 else "#28282c"
            axes.text(column, row, short(table[row][column]), ha="center", va="center", color=color, fontsize=7)
    axes.grid(False)
    return image


def ratio_bar(figure, image, axes, label):
    bar = figure.colorbar(image, ax=axes, label=label, extend="max")
    bar.ax.yaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 4]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())


def figure_12(folder, devices):
    """Heat maps: CL by threads of a group and entries of a chunk, a figure for each device; VL by entries of a chunk and length of the column."""
    norm, names = LogNorm(1, 4, clip=True), []
    for device in devices:
        cells = {(log2_n(row), int(row["group"]), int(row["chunk"])): ns(row) for row in device.rows if (row["section"], row["contender"]) == ("heat", "CL")}
        if not cells:
            continue
        sizes, groups, chunks = (sorted({cell[i] for cell in cells}) for i in range(3))
        across = min(len(sizes), 4)
        down = math.ceil(len(sizes) / across)
        figure, all_axes = plt.subplots(down, across, figsize=(1.2 + 2.7 * across, 0.8 + 2.4 * down), sharex=True, sharey=True, squeeze=False)
        for axes in all_axes.flat[len(sizes):]:
            axes.set_visible(False)
        for axes, n in zip(all_axes.flat, sizes):
            table = [[cells.get((n, group, chunk), math.nan) for chunk in chunks] for group in groups]
            image = heat_map(axes, table, norm, min(value for cell, value in cells.items() if cell[0] == n))
            axes.set(title=f"n = {power(n)}")
            axes.set_xticks(range(len(chunks)), chunks)
            axes.set_yticks(range(len(groups)), groups)
        figure.supxlabel("entries of a chunk", fontsize=10)
        figure.supylabel("threads of a group", fontsize=10)
        figure.suptitle(f"GPU-RMQ (CL), ns a query, mixed ranges, {device.name}")
        ratio_bar(figure, image, all_axes, "times the best of the length")
        names.append(f"12-cl-{slug(device.name)}")
        save(figure, folder, names[-1])
    panels = {}
    for device in devices:
        cells = {(log2_n(row), int(row["chunk"])): ns(row) for row in device.rows if (row["section"], row["contender"]) == ("heat", "VL")}
        if cells:
            panels[device.name] = cells
    if panels:
        figure, all_axes = plt.subplots(len(panels), 1, figsize=(7.5, 0.8 + 1.9 * len(panels)), squeeze=False)
        for axes, (name, cells) in zip(all_axes.flat, panels.items()):
            sizes, chunks = (sorted({cell[i] for cell in cells}) for i in range(2))
            table = [[cells.get((n, chunk), math.nan) for n in sizes] for chunk in chunks]
            image = heat_map(axes, table, norm, [min(row[column] for row in table) for column in range(len(sizes))])
            axes.set(title=name, xlabel="values of the column", ylabel="entries of a chunk")
            axes.set_xticks(range(len(sizes)), [power(n) for n in sizes])
            axes.set_yticks(range(len(chunks)), chunks)
        figure.suptitle("GPU-RMQ (VL), ns a query, mixed ranges")
        ratio_bar(figure, image, all_axes, "times the best of the length")
        names.append("12-vl")
        save(figure, folder, "12-vl")
    return names


def figure_18(folder, devices):
    """Our search and the better of CL and VL, by device."""
    found, styles = {}, {}
    for color, device in zip(COLORS, devices):
        times = {name: dict(points) for name, points in device.search("mixed", names=(OURS, CL, VL)).items()}
        better = defaultdict(lambda: math.inf)
        for n, time in itertools.chain(times.get(CL, {}).items(), times.get(VL, {}).items()):
            better[n] = min(better[n], time)
        for kind, points, dashes in (("ours", times.get(OURS, {}), "-"), ("the better of CL and VL", better, "--")):
            if points:
                found[f"{kind}, {device.name}"] = sorted(points.items())
                styles[f"{kind}, {device.name}"] = (f"{kind}, {device.name}", color, dashes)
    return lines(folder, "18", "Mixed ranges, by device", "ns a query", {"": found}, styles)


def slug(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def ratios(over, under):
    """The ratios of two lines where both have points."""
    over, under = dict(over), dict(under)
    return [over[x] / under[x] for x in sorted(over.keys() & under.keys())]


def span(numbers):
    """The least and the greatest number, as text."""
    low, high = (f"{number:.2f}" if number < 1.95 else f"{number:.1f}" if number < 9.95 else f"{number:.0f}" for number in (min(numbers), max(numbers)))
    return low if low == high else f"{low} to {high}"


def fastest(found, names):
    """The least time at each size."""
    best = {}
    for name in names:
        for n, time in found.get(name, []):
            best[n] = min(best.get(n, math.inf), time)
    return best


def by_device(devices, sentence):
    """What a sentence says of each device; of those for which it says nothing, nothing."""
    parts = [(device.name, sentence(device)) for device in devices]
    parts = [f"{name}: {part}" for name, part in parts if part]
    return "; ".join(parts) + "." if parts else ""


def read_1(device):
    found = device.search("mixed")
    others = ratios(fastest(found, [CL, VL, LCA]), fastest(found, [OURS]))
    return f"ours is {span(others)} times as fast as the next" if others else ""


def read_4(device):
    found = {(row["contender"], int(row["group"])): int(row["group"]) * 4 / ns(row) for row in device.reads}
    places = [place for place in ("L2 cache", "memory") if (place, 1) in found and (place, 32) in found]
    if not places:
        return ""
    return "groups of 32 read " + " and ".join(f"{found[place, 32]:.0f} GB/s from {place} ({found[place, 32] / found[place, 1]:.0f} times as much as single threads)" for place in places)


def read_12(device):
    cells = defaultdict(dict)
    for row in device.rows:
        if row["section"] == "heat":
            cells[row["contender"], log2_n(row)][int(row["group"]), int(row["chunk"])] = ns(row)
    best = {name: [min(found, key=found.get) for (contender, _), found in cells.items() if contender == name] for name in ("CL", "VL")}
    slower = [found[16, 32] / min(found.values()) for (contender, _), found in cells.items() if contender == "CL"]
    if not slower or not best["VL"]:
        return ""

    def either(name, part):
        numbers = [str(number) for number in sorted({pair[part] for pair in best[name]})]
        return " or ".join([", ".join(numbers[:-1]), numbers[-1]] if numbers[1:] else numbers)

    return (f"CL is fastest with {either('CL', 0)} threads and {either('CL', 1)} entries, and takes {span(slower)} times as long with the paper's 16 and 32; "
            f"VL is fastest with {either('VL', 1)} entries")


def read_13(device):
    found = device.points(("queuing", "rays"), "mixed", ns, list(STEPS))
    cl = found.get("CL warp-local queuing", [])
    steps = [(STEPS[step][0].removeprefix("CL "), ratios(found.get(step, []), cl)) for step in STEPS if step not in ("CL warp-local queuing", "CL multi-load")]
    steps = [f"{name} {span(times)}" for name, times in steps if times]
    return "times as long as CL, mixed ranges: " + ", ".join(steps) if steps else ""


def read_14(device):
    found = device.points(("queuing",), "mixed", ns, list(STEPS)[:2])
    slower = ratios(found.get("CL multi-load", []), found.get("CL warp-local queuing", []))
    return f"multi-load takes {span(slower)} times as long" if slower else ""


def read_15(device):
    def of_column(row):
        total = sum(number(row, part) for part in ("index_bytes", "build_bytes", "column_bytes"))
        return total / number(row, "column_bytes") if row["index_bytes"] else None

    found = device.search("mixed", of_column, (OURS, CL, VL, LCA, RTXRMQ))
    systems = [f"{SYSTEMS[name][0]} {span([times for _, times in points])}" for name, points in found.items()]
    return "times the column: " + ", ".join(systems) if systems else ""


def read_16(device):
    found = [(workload, device.search(workload)) for workload in ("large", "medium", "small")]
    slower = [(workload, ratios(fastest(times, [CL, VL]), fastest(times, [OURS]))) for workload, times in found]
    slower = [f"{span(times)} on {workload} ranges" for workload, times in slower if times]
    return "times as long as ours, the better of CL and VL takes " + ", ".join(slower) if slower else ""


def read_17(device):
    found = {name: dict(points) for name, points in device.search("mixed", lambda row: number(row, "build_ms")).items()}
    parts = []
    for name in (OURS, CL, VL, LCA, RTXRMQ, "HRMQ", "CPU"):
        if points := found.get(name):
            n = 26 if 26 in points else max(points)
            parts.append(f"{without_threads(name)} {short(points[n])} ms" + ("" if n == 26 else f" (2^{n})"))
    return "2^26 values: " + ", ".join(parts) if parts else ""


def read_18(devices):
    if len(devices) < 2:
        return ""
    first, parts = devices[0], []
    for device in devices[1:]:
        here, there = device.search("mixed"), first.search("mixed")
        ours, paper = (span(ratios(fastest(here, names), fastest(there, names))) for names in ([OURS], [CL, VL]))
        parts.append(f"The {device.name} takes {ours} times the time of the {first.name} with ours, {paper} times with the better of CL and VL")
    return ". ".join(parts) + "."


def without_threads(name):
    """The name of a system where its number of threads says nothing: its index, and the build of HRMQ, which has one."""
    return SYSTEMS[name][0].removesuffix(", all threads")


def draw(folder, devices):
    """Draws all figures; returns their names with what they show, and a sentence of reading."""
    def panels(points):
        return {device.name: points(device) for device in devices}

    def total(row):
        parts = ("index_bytes", "build_bytes", "column_bytes")
        return sum(number(row, part) for part in parts) / 1e6 if row["index_bytes"] else None

    def index(row):
        return number(row, "index_bytes") / 1e6

    def build(row):
        return number(row, "build_ms")

    on_gpu = [name for name in SYSTEMS if name not in ("HRMQ", "CPU", TWO_READS, MODEL)]
    classes = (("a", "large"), ("b", "medium"), ("c", "small"))
    shown = []

    def show(number, what, reading, *names):
        names = [name for name in names if name]
        if names:
            shown.append((number, what, reading if isinstance(reading, str) else by_device(devices, reading), names))

    show("1", "memory of the index, build and time by length of the column; mixed ranges", read_1,
         lines(folder, "1a", "Index", "MB", panels(lambda one: one.search("mixed", index, on_gpu)), SYSTEMS),
         lines(folder, "1b", "Build", "ms", panels(lambda one: one.search("mixed", build, on_gpu)), SYSTEMS),
         lines(folder, "1c", "Time, mixed ranges", "ns a query", panels(lambda one: one.search("mixed")), SYSTEMS))
    reads = {}
    for device in devices:
        found = defaultdict(list)
        for row in device.reads:
            found[row["contender"]].append((int(row["group"]).bit_length() - 1, int(row["group"]) * 4 / ns(row)))
        reads[device.name] = {name: sorted(points) for name, points in found.items()}
    styles = {name: (name, color, "-") for name, color in zip(dict.fromkeys(itertools.chain(*reads.values())), COLORS)}
    show("4", "random reads of groups of threads, 4 bytes a thread", read_4,
         lines(folder, "4", "Random reads of groups of threads", "GB/s", reads, styles, x_label="threads of a group", x_format=lambda x: str(2**x)))
    show("12", "CL by threads of a group and entries of a chunk, VL by entries of a chunk; colours compare with the best of each length", read_12, *figure_12(folder, devices))

    def steps(workload):
        return panels(lambda one: one.points(("queuing", "rays"), workload, ns, [name for name in STEPS if name != "CL multi-load"]))

    show("13", "from CL to RTXRMQ: CL without warp intrinsics, as a ray-tracing pipeline, with rays", read_13,
         *(lines(folder, f"13{letter}", f"From CL to RTXRMQ, {workload} ranges", "ns a query", steps(workload), STEPS) for letter, workload in classes),
         lines(folder, "13-mixed", "From CL to RTXRMQ, mixed ranges", "ns a query", steps("mixed"), STEPS))
    show("14", "CL with warp-local queuing and with multi-load; mixed ranges", read_14,
         lines(folder, "14", "CL with and without warp-local queuing, mixed ranges", "ns a query",
               panels(lambda one: one.points(("queuing",), "mixed", ns, list(STEPS)[:2])), STEPS))
    show("15", "memory in all: column, index, and what only the build needs", read_15,
         lines(folder, "15", "Column, index, and what only the build needs", "MB", panels(lambda one: one.search("mixed", total, on_gpu)), SYSTEMS))
    show("16", "time by length of the ranges", read_16,
         *(lines(folder, f"16{letter}", f"Time, {workload} ranges", "ns a query", panels(lambda one: one.search(workload)), SYSTEMS) for letter, workload in classes))
    with_build = [name for name in SYSTEMS if name not in (TWO_READS, MODEL)]
    show("17", "build time", read_17, lines(folder, "17", "Build", "ms", panels(lambda one: one.search("mixed", build, with_build)), SYSTEMS))
    show("18", "devices", read_18(devices), figure_18(folder, devices))
    return shown


def table(header, rows):
    """A Markdown table; rows without numbers are left out."""
    rows = [row for row in rows if any(cell != "-" for cell in row[1:])]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    cells = [[row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))] for row in [header, *rows]]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return ["| " + " | ".join(row) + " |" for row in [cells[0], rule, *cells[1:]]]


def tables(device):
    """The tables of a device, as lines of Markdown."""
    sizes = sorted({log2_n(row) for row in device.rows if row["section"] in ("search", "rays")})
    header = ["", *(f"2^{n}" for n in sizes)]

    def cells(points):
        points = dict(points)
        return [short(points[n]) if n in points else "-" for n in sizes]

    def by_system(found):
        return [[SYSTEMS[name][0], *cells(found[name])] for name in SYSTEMS if name in found]

    def faster(workload, best):
        """How many times faster ours is than the better of CL and VL, or than the best of the heat map."""
        found = {name: dict(points) for name, points in device.search(workload, names=(OURS, CL, VL)).items()}
        heat = defaultdict(lambda: math.inf)
        for row in device.rows:
            if best and row["section"] == "heat" and row["workload"] == workload:
                heat[log2_n(row)] = min(heat[log2_n(row)], ns(row))
        ratios = {}
        for n, ours in found.get(OURS, {}).items():
            other = heat[n] if best else min((found[name].get(n, math.inf) for name in (CL, VL) if name in found), default=math.inf)
            if other < math.inf:
                ratios[n] = other / ours
        return [f"{ratios[n]:.2f}" if n in ratios else "-" for n in sizes]

    mixed = device.search("mixed")
    steps = device.points(("queuing", "rays"), "mixed", ns, list(STEPS))
    percent = device.search("mixed", lambda row: number(row, "index_bytes") / number(row, "column_bytes") * 100)
    build = device.search("mixed", lambda row: number(row, "build_ms"))
    text = [f"### {device.name}", "", f"Host: {device.cpu}.", "", "ns a query, mixed ranges:", ""]
    text += table(header, [
        *by_system(mixed),
        ["ours: times faster than the better of CL and VL, paper's parameters", *faster("mixed", False)],
        ["ours: times faster than the best of the heat map", *faster("mixed", True)],
    ])
    text += ["", "By length of the ranges:", ""]
    rows = []
    for workload in ("large", "medium", "small"):
        found = device.search(workload)
        rows += [[f"{SYSTEMS[name][0]}, {workload}", *cells(found[name])] for name in (OURS, CL, VL, LCA, RTXRMQ) if name in found]
        rows.append([f"ours: times faster than CL and VL, {workload}", *faster(workload, False)])
    text += table(header, rows)
    text += ["", "The steps from CL to RTXRMQ, ns a query, mixed ranges:", ""]
    text += table(header, [[STEPS[name][0], *cells(steps[name])] for name in STEPS if name in steps])
    text += ["", "Build, ms, and index in percent of the column:", ""]
    text += table(header, [[f"build, {'HRMQ, one thread' if name == 'HRMQ' else SYSTEMS[name][0]}", *cells(build[name])] for name in SYSTEMS if name in build]
                  + [[f"index, {without_threads(name)}", *cells(percent[name])] for name in SYSTEMS if name in percent])
    wrong = sum(int(row["wrong"]) for row in device.rows)
    text += ["", "All answers were right." if wrong == 0 else f"**{wrong} answers were wrong.**", ""]
    return text


def write(docs, shown, devices):
    """Writes figures and tables between the marks in the docs."""
    text = docs.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"error: {docs} must have the marks\n{BEGIN}\n{END}")
    body = [line for device in devices for line in tables(device)]
    body += ["### Figures", "", "Numbers are the paper's.", ""]
    for figure, what, reading, names in shown:
        body += [f"**{figure}**: {what}. {reading}".rstrip(), ""]
        body += [line for name in names for line in (f"![Figure {name}: {what}]({docs.stem}/figure-{name}.svg)", "")]
    before, rest = text.split(BEGIN)
    docs.write_text(before + BEGIN + "\n\n" + "\n".join(body) + END + rest.split(END)[1])
    print(docs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--docs", type=Path, default=Path("docs/benchmarks.md"))
    args = parser.parse_args()
    devices = open_devices(args.results)
    folder = args.docs.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("figure-*.svg"):
        old.unlink()
    write(args.docs, draw(folder, devices), devices)


if __name__ == "__main__":
    main()
