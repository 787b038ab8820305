"""What `rmq-bench` measured, as `results.csv` has it, by device."""

import csv
import math
import re
import sys
from collections import defaultdict

OURS, CL, VL, LCA = "GPU ours", "GPU CL", "GPU VL", "GPU LCA (inlabel)"  # names have no commas in the file
ONE_SIDED, TOUR, TRIP = "GPU VL one-sided", "GPU LCA (Euler tour)", "GPU LCA (Euler tour) whole trip"
FULL_SCAN, HRMQ, CPU = "GPU full scan", "HRMQ", "CPU"
TWO_READS = "two random reads of 128 bytes"
RTXRMQ, BY_RANKS = "Vulkan RTXRMQ", "Vulkan RTXRMQ with planes at ranks"
PIPELINE, WITH_RAYS = "Vulkan CL as a pipeline without rays", "Vulkan CL with rays on the highest level"
UPDATABLE = " updatable"  # behind the names of pipelines with rays: structures are built as published
QUEUE, MULTI_LOAD = "CL warp-local queuing", "CL multi-load"
NO_SHUFFLES, NO_INTRINSICS = "CL without shuffles", "CL without warp intrinsics"

# Entries of the level that CL asks by rays in the paper's plots.
RAY_LEVEL = 64


def number(row, column):
    return float(row[column] or 0)


def log2_n(row):
    return int(row["log2_n"])


def ns(row):
    return number(row, "ns")


def index_percent(row):
    return 100 * number(row, "index_bytes") / number(row, "column_bytes")


def index_mb(row):
    return number(row, "index_bytes") / 1e6


def build_ms(row):
    return number(row, "build_ms")


def total_mb(row):
    parts = ("index_bytes", "build_bytes", "column_bytes")
    return sum(number(row, part) for part in parts) / 1e6 if row["index_bytes"] and row["build_bytes"] else None


def total_of_column(row):
    total = total_mb(row)
    return total and total * 1e6 / number(row, "column_bytes")


def system(row):
    """The system of a row: contenders on the CPU without their number of threads, pipelines with rays without how structures are built; None for those
    that no figure has."""
    name = row["contender"].removesuffix(UPDATABLE)
    if name == WITH_RAYS and int(row["cutoff"]) != RAY_LEVEL:
        return None
    found = re.fullmatch(r"(CPU|HRMQ) (\d+) threads?", name)
    return found[1] if found else name


class Device:
    """The results of a device."""

    def __init__(self, name, rows, profile, published):
        self.name, self.all, self.profile, self.published = name, rows, profile, published
        self.rows = [row for row in rows if (row["key"], row["data"], row["result"]) == ("f32", "uniform", "value")]
        self.reads = [row for row in rows if row["section"] == "reads"]

    def points(self, sections, workload, y, names, rows=None):
        """Points {log2 n: y(row)} by system, in the order of `names`: of several settings that of the fastest row with a y."""
        lines, fastest = {name: {} for name in names}, {}
        for row in self.rows if rows is None else rows:
            if row["section"] in sections and row["workload"] == workload and system(row) in lines:
                if value := y(row):
                    name, n = system(row), log2_n(row)
                    if ns(row) < fastest.get((name, n), math.inf):
                        lines[name][n], fastest[name, n] = value, ns(row)
        return {name: dict(sorted(points.items())) for name, points in lines.items() if points}

    def search(self, workload, y=ns, names=(OURS, CL, VL, LCA, TOUR, RTXRMQ, FULL_SCAN, HRMQ, CPU, TWO_READS)):
        return self.points(("search", "limit", "rays", "succinct"), workload, y, names)

    def steps(self, workload, names):
        return self.points(("queuing", "rays"), workload, ns, names)

    def of_data(self, data, result, key, workload):
        """Times of columns that are not uniform, or of other results."""
        rows = [row for row in self.all if (row["data"], row["result"], row["key"]) == (data, result, key)]
        return self.points(("search",), workload, ns, (OURS, CL, VL, ONE_SIDED, LCA, f"{VL} t = 8", f"{VL} t = 64"), rows)

    def heat(self, contender, workload="mixed"):
        """Times {log2 n: {(threads of a group, entries of a chunk): ns}}."""
        cells = defaultdict(dict)
        for row in self.rows:
            if (row["section"], row["contender"], row["workload"]) == ("heat", contender, workload):
                cells[log2_n(row)][int(row["group"]), int(row["chunk"])] = ns(row)
        return dict(sorted(cells.items()))

    def runs(self):
        """The runs: {(commit, date): rows}."""
        found = defaultdict(list)
        for row in self.all:
            found[row["commit"], row["date"]].append(row)
        return found

    def is_of_the_paper(self, row):
        """Whether a row is of the values, results and ranges that the paper measures."""
        return (row["key"], row["data"], row["result"]) in (("f32", "uniform", "value"), ("f32", "constant", "value")) and row["workload"] != "ascending"

    def tuned(self, contender, workload="mixed"):
        """The best of the heat map, where these ranges have one: {log2 n: ns}."""
        return {n: min(cells.values()) for n, cells in self.heat(contender, workload).items()}

    def ours_of_paper(self, workload):
        """The better of CL and VL with groups and chunks as in the paper, in our implementation: {log2 n: ns}."""
        return least(self.points(("search",), workload, ns, (CL, VL, ONE_SIDED)).values())

    def paper(self, workload):
        """The same in our implementation or the authors'."""
        return least([self.ours_of_paper(workload), *self.authors(workload, ("CL", "VL"))])

    def authors(self, workload, systems):
        """What the authors' programs took on such a device."""
        return [self.published.times(system, self.name, workload) for system in systems]

    def best_vl(self):
        """The best of VL on mixed ranges, with any parameters, in any form, or the authors': {log2 n: ns}."""
        found = self.points(("search",), "mixed", ns, (VL, ONE_SIDED, f"{VL} t = 8", f"{VL} t = 64"))
        return least([*found.values(), self.tuned("VL"), *self.authors("mixed", ("VL",))])

    def others(self, workload):
        """The best of all other systems with an index, tuned ones and the authors' programs included: {log2 n: ns}."""
        found = self.points(("search",), workload, ns, (LCA, TOUR, f"{VL} t = 8", f"{VL} t = 64"))
        tuned = [self.tuned(name, workload) for name in ("CL", "VL")]
        return least([self.paper(workload), *found.values(), *tuned, *self.authors(workload, ("LCA",))])

    def rays(self, contender, workload):
        """Times by setting: {(entries of a block or of the level, log2 n): ns}."""
        column = "chunk" if contender.startswith(RTXRMQ) else "cutoff"
        rows = [row for row in self.rows if (row["section"], row["contender"], row["workload"]) == ("rays", contender, workload)]
        return {(int(row[column]), log2_n(row)): ns(row) for row in rows}

    def spread(self, sections, on_cpu=False):
        """The greatest ratio of the slowest to the fastest round of a cell, and the median of these."""
        rows = [row for row in self.all if row["section"] in sections and number(row, "least_ns")]
        ratios = sorted(number(row, "most_ns") / number(row, "least_ns") for row in rows if row["contender"].startswith((CPU, HRMQ, "range_minimum_query")) == on_cpu)
        return (ratios[-1], ratios[len(ratios) // 2]) if ratios else None


def least(lines):
    """The least of several lines at each size."""
    best = defaultdict(lambda: math.inf)
    for points in lines:
        for n, time in points.items():
            best[n] = min(best[n], time)
    return dict(sorted(best.items()))


def ratios(over, under):
    """The ratios of two lines where both have points."""
    return {x: over[x] / under[x] for x in sorted(over.keys() & under.keys())}


def short_device(name):
    """The name of a GPU without its memory and driver."""
    return re.sub(r" \d+GB.*", "", name.split(";")[0].removeprefix("NVIDIA ")) or "no GPU"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def open_devices(paths, published):
    """Reads all results. Runs on the same device, of different sections, are put together. A file is of one machine: rows
    that were measured on its CPU alone, which name no GPU, belong to the others.

    What `profile` counted is in files with the beginning of a device's name.
    """
    by_device, profiles = defaultdict(list), {}
    for path in paths:
        rows = read(path)
        if rows and "section" in rows[0]:
            gpu = max(row["gpu"] for row in rows)
            by_device[short_device(gpu)] += rows
        elif rows and "kernel" in rows[0]:
            profiles[path.name.split("-")[0]] = rows
        else:
            sys.exit(f"error: {path} has no results of rmq-bench")
    return [Device(name, rows, profiles.get(name.lower(), []), published) for name, rows in sorted(by_device.items())]


class Published:
    """Times that the authors' own programs took: `published.csv`."""

    def __init__(self, path):
        self.rows = read(path) if path.exists() else []

    def times(self, system, gpu, workload="mixed"):
        return self.read(system, gpu, workload, ns)

    def blocks(self, workload):
        """The sizes of the blocks, as powers of two, that RTXRMQ's authors measured those times with: {log2 n: log2 of the size}."""
        return self.read("RTXRMQ", "A100", workload, lambda row: int(row["source"].rsplit("2^", 1)[1]))

    def read(self, system, gpu, workload, y):
        found = {log2_n(row): y(row) for row in self.rows if (row["system"], row["gpu"], row["workload"]) == (system, gpu, workload)}
        return dict(sorted(found.items()))
