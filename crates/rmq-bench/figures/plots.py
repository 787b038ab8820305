"""The paper's figures: what they show, as data, and how it is drawn with matplotlib.

A figure has a digest of its data, which its SVG carries, so that a check needs no matplotlib.
"""

import hashlib
import itertools
import json
import math

from results import *
from text import short, significant

# Distinct also with colour-blindness, after Okabe and Ito, and of middle lightness, to be seen on white and on black.
COLORS = ["#2f86c8", "#dd6b20", "#12a07a", "#c46fae", "#cf9a12", "#49b3e8", "#a0704f", "#8f80dc"]
GREY = "#80878f"  # also of all text

# Systems: name in the file -> (name in figures, colour, style).
SYSTEMS = {
    OURS: ("ours", COLORS[0], "-"),
    CL: ("GPU-RMQ (CL)", COLORS[1], "-"),
    VL: ("GPU-RMQ (VL)", COLORS[2], "-"),
    ONE_SIDED: ("GPU-RMQ (VL), compared on one side", COLORS[2], "--"),
    LCA: ("LCA (inlabel)", COLORS[3], "-"),
    TOUR: ("LCA (Euler tour)", COLORS[3], "--"),
    RTXRMQ: ("RTXRMQ", COLORS[4], "-"),
    FULL_SCAN: ("full scan", COLORS[6], "-"),
    HRMQ: ("HRMQ", COLORS[7], "-"),
    CPU: ("ours on the CPU", COLORS[5], "-"),
    TWO_READS: (TWO_READS, GREY, "--"),
}

# Figures 13 and 14.
STEPS = {
    QUEUE: ("CL", COLORS[1], "-"),
    MULTI_LOAD: ("CL, multi-load", COLORS[2], "-"),
    NO_SHUFFLES: ("CL without shuffles", COLORS[3], "-"),
    NO_INTRINSICS: ("CL without warp intrinsics", COLORS[0], "-"),
    PIPELINE: ("CL as a ray-tracing pipeline, no rays", COLORS[5], "-"),
    WITH_RAYS: ("CL with rays on the highest level", COLORS[7], "-"),
    RTXRMQ: ("RTXRMQ", COLORS[4], "-"),
}

CLASSES = (("a", "large"), ("b", "medium"), ("c", "small"))


def line_figure(name, title, y_label, panels, styles, *, x_label="values of the column", powers=True):
    """A panel with lines for each device: {device: {line: {log2 x: y}}}; None if there are no lines."""
    panels = {device: found for device, found in panels.items() if found}
    if not panels:
        return None
    shown = [line for line in styles if any(line in found for found in panels.values())]
    lines = {device: {line: sorted(points.items()) for line, points in found.items()} for device, found in panels.items()}
    return {"name": name, "kind": "lines", "title": title, "x": x_label, "y": y_label, "powers": powers, "panels": lines,
            "styles": [(line, *styles[line]) for line in shown]}


def heat_figures(devices):
    """Heat maps: CL by threads of a group and entries of a chunk, a figure for each device; VL by entries of a chunk."""
    figures, rows = [], {}
    for device in devices:
        cells = device.heat("CL")
        if cells:
            groups, chunks = (sorted({pair[i] for found in cells.values() for pair in found}) for i in range(2))
            panels = {str(n): [[found.get((group, chunk)) for chunk in chunks] for group in groups] for n, found in cells.items()}
            figures.append({"name": f"12-cl-{slug(device.name)}", "kind": "heat", "title": f"GPU-RMQ (CL), ns a query, mixed ranges, {device.name}",
                            "x": "entries of a chunk", "y": "threads of a group", "columns": chunks, "rows": groups, "panels": panels})
        if cells := device.heat("VL"):
            rows[device.name] = cells
    if rows:
        sizes = sorted({n for cells in rows.values() for n in cells})
        chunks = sorted({chunk for cells in rows.values() for found in cells.values() for _, chunk in found})
        panels = {device: [[cells.get(n, {}).get((1, chunk)) for n in sizes] for chunk in chunks] for device, cells in rows.items()}
        figures.append({"name": "12-vl", "kind": "heat", "title": "GPU-RMQ (VL), ns a query, mixed ranges", "x": "values of the column",
                        "y": "entries of a chunk", "columns": sizes, "rows": chunks, "panels": panels, "best_of_columns": True})
    return figures


def slug(name):
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def read_styles(devices):
    names = dict.fromkeys(row["contender"] for device in devices for row in device.reads)
    return {name: (name, color, "-") for name, color in zip(names, COLORS)}


def read_lines(device):
    """GB/s that all threads get, by threads of a group: {series: {log2 group: GB/s}}."""
    lines = {}
    for row in device.reads:
        lines.setdefault(row["contender"], {})[int(row["group"]).bit_length() - 1] = 4 / ns(row)
    return lines


def device_figure(devices):
    """Our search and the better of CL and VL, by device."""
    found, styles = {}, {}
    for color, device in zip(COLORS, devices):
        ours = device.search("mixed", names=(OURS,)).get(OURS, {})
        for kind, points, dashes in (("ours", ours, "-"), ("the better of CL and VL", device.ours_of_paper("mixed"), "--")):
            if points:
                name = f"{kind}, {device.name}"
                found[name], styles[name] = points, (name, color, dashes)
    return line_figure("18", "Mixed ranges, by device", "ns a query", {"": found}, styles) if len(devices) > 1 else None


def figures(devices):
    """All figures that there are results for: (the paper's number, what it shows, figures)."""
    def panels(points):
        return {device.name: points(device) for device in devices}

    on_gpu = (OURS, CL, VL, LCA, TOUR, RTXRMQ)
    with_build = (*on_gpu, HRMQ, CPU)
    steps = [name for name in STEPS if name != MULTI_LOAD]
    found = [
        ("1", "memory of the index, build and time by length of the column; mixed ranges", [
            line_figure("1a", "Index", "MB", panels(lambda one: one.search("mixed", index_mb, on_gpu)), SYSTEMS),
            line_figure("1b", "Build", "ms", panels(lambda one: one.search("mixed", build_ms, on_gpu)), SYSTEMS),
            line_figure("1c", "Time, mixed ranges", "ns a query", panels(lambda one: one.search("mixed")), SYSTEMS)]),
        ("4", "random reads of groups of threads, 4 bytes a thread", [
            line_figure("4", "Random reads, 4 bytes a thread", "GB/s of all threads", panels(read_lines), read_styles(devices),
                        x_label="threads of a group", powers=False)]),
        ("12", "CL by threads of a group and entries of a chunk, VL by entries of a chunk; colours compare with the best of each length", heat_figures(devices)),
        ("13", "from CL to RTXRMQ: CL without warp intrinsics, as a ray-tracing pipeline, with rays", [
            *(line_figure(f"13{letter}", f"From CL to RTXRMQ, {workload} ranges", "ns a query", panels(lambda one: one.steps(workload, steps)), STEPS)
              for letter, workload in CLASSES),
            line_figure("13-mixed", "From CL to RTXRMQ, mixed ranges", "ns a query", panels(lambda one: one.steps("mixed", steps)), STEPS)]),
        ("14", "CL with warp-local queuing and with multi-load; mixed ranges", [
            line_figure("14", "CL with and without warp-local queuing, mixed ranges", "ns a query", panels(lambda one: one.steps("mixed", (QUEUE, MULTI_LOAD))), STEPS)]),
        ("15", "memory in all: column, index, and what only the build needs", [
            line_figure("15", "Column, index, and what only the build needs", "MB", panels(lambda one: one.search("mixed", total_mb, on_gpu)), SYSTEMS)]),
        ("16", "time by length of the ranges", [
            line_figure(f"16{letter}", f"Time, {workload} ranges", "ns a query", panels(lambda one: one.search(workload)), SYSTEMS) for letter, workload in CLASSES]),
        ("17", "build time", [line_figure("17", "Build", "ms", panels(lambda one: one.search("mixed", build_ms, with_build)), SYSTEMS)]),
        ("18", "devices", [device_figure(devices)]),
    ]
    found = [(number, what, [figure for figure in all if figure]) for number, what, all in found]
    return [entry for entry in found if entry[2]]


def digest(figure):
    return hashlib.sha256(json.dumps(figure, sort_keys=True).encode()).hexdigest()[:20]


# --- drawing ---

def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grey = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "grid.color", "legend.labelcolor", "text.color", "xtick.color", "ytick.color")
    plt.rcParams.update({name: GREY for name in grey})
    plt.rcParams.update({
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": "medium",
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "savefig.transparent": True,
        # Text stays text, and the same data gives the same file.
        "svg.fonttype": "none",
        "svg.hashsalt": "rmq-bench",
    })
    return plt


def power(exponent):
    return f"$2^{{{exponent}}}$"


def logarithmic(axis, values):
    """Labels a logarithmic axis so that neither too few nor too many numbers are on it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    decades = math.log10(max(values) / min(values))
    steps = [1] if decades > 4 else [1, 3] if decades > 2 else [1, 2, 5] if decades > 1 else [1, 1.5, 2, 3, 4, 5, 6, 8]
    low, high = (math.floor(math.log10(end)) for end in (min(values), max(values)))
    ticks = [step * 10.0**exponent for exponent in range(low, high + 2) for step in steps]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if 0.7 * min(values) <= tick <= 1.4 * max(values)]))
    axis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
    axis.set_minor_locator(NullLocator())


def draw_lines(plt, spec):
    panels, styles = spec["panels"], spec["styles"]
    drawn, all_axes = plt.subplots(1, len(panels), figsize=(1.4 + 3.9 * len(panels) + 2.6, 3.9), sharey=True, squeeze=False)
    for axes, (device, found) in zip(all_axes.flat, panels.items()):
        for line, label, color, dashes in styles:
            if line in found:
                marker = None if color == GREY else "o"
                axes.plot(*zip(*found[line]), label=label, color=color, linestyle=dashes, linewidth=2, markersize=4.5, marker=marker)
        axes.set(title=device, xlabel=spec["x"], yscale="log")
        xs = sorted({x for points in found.values() for x, _ in points})
        axes.set_xticks(xs, [power(x) if spec["powers"] else str(2**x) for x in xs])
    all_axes.flat[0].set_ylabel(spec["y"])
    logarithmic(all_axes.flat[0].yaxis, [y for found in panels.values() for points in found.values() for _, y in points])
    drawn.suptitle(spec["title"])
    handles = {}
    for axes in all_axes.flat:
        handles.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels())})
    order = [label for _, label, *_ in styles]
    drawn.legend([handles[label] for label in order], order, loc="outside right center")
    return drawn


def draw_heat(plt, spec):
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    norm, panels, by_column = LogNorm(1, 4, clip=True), spec["panels"], spec.get("best_of_columns")
    across = 1 if by_column else min(len(panels), 4)
    down = math.ceil(len(panels) / across)
    size = (7.5, 0.8 + 2.1 * down) if by_column else (1.2 + 2.7 * across, 0.8 + 2.4 * down)
    drawn, all_axes = plt.subplots(down, across, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes in all_axes.flat[len(panels):]:
        axes.set_visible(False)
    for axes, (name, cells) in zip(all_axes.flat, panels.items()):
        table = [[math.nan if cell is None else cell for cell in row] for row in cells]
        columns = [[row[i] for row in table if not math.isnan(row[i])] for i in range(len(table[0]))]
        bests = [min(column, default=math.nan) for column in columns]
        if not by_column:
            bests = [min(best for best in bests if not math.isnan(best))] * len(bests)
        shown = [[value / best for value, best in zip(row, bests)] for row in table]
        image = axes.imshow(shown, norm=norm, aspect="auto", origin="lower", cmap="viridis_r")
        for row, column in itertools.product(range(len(table)), range(len(table[0]))):
            if not math.isnan(table[row][column]):
                color = "white" if norm(shown[row][column]) > 0.45 else "#28282c"
                axes.text(column, row, short(table[row][column]), ha="center", va="center", color=color, fontsize=7)
        axes.set(title=name if by_column else f"n = {power(name)}")
        labels = [power(n) for n in spec["columns"]] if by_column else spec["columns"]
        axes.set_xticks(range(len(labels)), labels)
        axes.set_yticks(range(len(spec["rows"])), spec["rows"])
        axes.grid(False)
    drawn.supxlabel(spec["x"], fontsize=10)
    drawn.supylabel(spec["y"], fontsize=10)
    drawn.suptitle(spec["title"])
    bar = drawn.colorbar(image, ax=all_axes, label="times the best of the length", extend="max")
    bar.ax.yaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 4]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: significant(y)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return drawn


def path_of(folder, figure):
    return folder / f"figure-{figure['name']}.svg"


def draw(folder, all_figures):
    """Draws all figures anew, and removes those that are no more."""
    plt = pyplot()
    for old in folder.glob("figure-*.svg"):
        old.unlink()
    for figure in all_figures:
        drawn = (draw_lines if figure["kind"] == "lines" else draw_heat)(plt, figure)
        drawn.savefig(path_of(folder, figure), metadata={"Date": None, "Description": f"data {digest(figure)}"})
        plt.close(drawn)


def faults(folder, all_figures):
    """What is wrong with the drawn figures."""
    expected = {path_of(folder, figure): digest(figure) for figure in all_figures}
    found = set(folder.glob("figure-*.svg"))
    wrong = [f"{path} shows no results that there are" for path in sorted(found - expected.keys())]
    for path, wanted in expected.items():
        if path not in found:
            wrong.append(f"{path} is missing")
        elif f"data {wanted}" not in path.read_text():
            wrong.append(f"{path} was not drawn from the results")
    return wrong
