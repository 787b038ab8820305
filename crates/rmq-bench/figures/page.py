"""The text that is written from results: tables, figures with a sentence of reading, the paper's claims, lines of the README."""

from plots import STEPS, SYSTEMS, read_lines
from results import *
from text import listed, ratio, short, span, table, wrapped


# Cards without ray-tracing cores.
NO_RT_CORES = ("A100", "H100", "H200")


def by_device(devices, sentence):
    """What a sentence says of each device; of those for which it says nothing, nothing."""
    parts = [(device.name, sentence(device)) for device in devices]
    parts = [f"{name}: {part}" for name, part in parts if part]
    return "; ".join(parts) + "." if parts else ""


def to_2_31(points):
    """The span of ratios to the next best. Beyond 2^31 values there are neither LCA nor heat maps."""
    below, beyond = ({n: time for n, time in points.items() if (n > 31) == far} for far in (False, True))
    text = span(below.values()) if below else ""
    return text + "".join(f" (2^{n} values, without LCA and heat maps: {ratio(time)})" for n, time in beyond.items())


# --- readings of figures ---

def read_1(device):
    faster = ratios(device.others("mixed"), device.search("mixed").get(OURS, {}))
    return f"ours is {to_2_31(faster)} times as fast as the next best" if faster else ""


def read_4(device):
    lines = read_lines(device)
    parts = []
    for place in ("L2 cache", "memory"):
        words, same = (lines.get(f"{kind} {place}", {}) for kind in ("neighbouring words", "the same word"))
        if {0, 5, 8} <= words.keys() and 5 in same:
            parts.append(f"from {place}, groups of 32 get {words[5]:.0f} GB/s ({words[5] / words[0]:.0f} times as much as single threads), groups of 256 "
                         f"{words[8]:.0f}, and groups of 32 that read the same word {same[5]:.0f}")
    return "; ".join(parts)


def read_12(device):
    best = {name: [min(cells, key=cells.get) for cells in device.heat(name).values()] for name in ("CL", "VL")}
    slower = {n: cells[16, 32] / min(cells.values()) for n, cells in device.heat("CL").items() if (16, 32) in cells}
    parts = [f"{span([time for n, time in slower.items() if (n > 24) == long])} times as long with {what} 2^24 values"
             for long, what in ((True, "more than"), (False, "up to")) if any((n > 24) == long for n in slower)]
    if not slower or not best["VL"]:
        return ""

    def either(name, part):
        return listed([str(number) for number in sorted({pair[part] for pair in best[name]})])

    return (f"CL is fastest with {either('CL', 0)} threads and {either('CL', 1)} entries; the paper's 16 and 32, which it claims for more than 2^24 "
            f"values, take {listed(parts)}; VL is fastest with {either('VL', 1)} entries")


def read_13(device):
    found = device.steps("mixed", STEPS)
    slower = [(STEPS[step][0].removeprefix("CL "), ratios(found.get(step, {}), found.get(QUEUE, {}))) for step in STEPS if step not in (QUEUE, MULTI_LOAD, RTXRMQ)]
    parts = [f"{name} {span(times.values())}" for name, times in slower if times]
    rays = ", on a card that traces rays in software" if device.name in NO_RT_CORES and RTXRMQ in found else ""
    return f"times as long as CL, mixed ranges{rays}: " + ", ".join(parts) if parts else ""


def read_14(device):
    found = device.steps("mixed", (QUEUE, MULTI_LOAD))
    slower = ratios(found.get(MULTI_LOAD, {}), found.get(QUEUE, {}))
    return f"multi-load takes {span(slower.values())} times as long" if slower else ""


def read_15(device):
    found = device.search("mixed", total_of_column, (OURS, CL, VL, LCA, TOUR, RTXRMQ))
    return "times the column: " + ", ".join(f"{SYSTEMS[name][0]} {span(points.values())}" for name, points in found.items()) if found else ""


def read_16(device):
    found = [(workload, ratios(device.others(workload), device.search(workload).get(OURS, {}))) for workload in ("large", "medium", "small")]
    parts = [f"{to_2_31(times)} on {workload} ranges" for workload, times in found if times]
    return "times as long as ours, the next best (CL, VL or LCA, CL and VL also with the best of their heat maps of these ranges) takes " + ", ".join(parts) if parts else ""


def read_17(device):
    found = device.search("mixed", build_ms)
    parts = []
    for name in (OURS, CL, VL, LCA, TOUR, RTXRMQ, HRMQ, CPU):
        if points := found.get(name):
            n = 26 if 26 in points else max(points)
            parts.append(f"{SYSTEMS[name][0]} {short(points[n])} ms" + ("" if n == 26 else f" (2^{n})"))
    return "2^26 values: " + ", ".join(parts) if parts else ""


def read_18(devices):
    first, parts = devices[0], []
    for device in devices[1:]:
        ours = ratios(*(one.search("mixed", names=(OURS,))[OURS] for one in (device, first)))
        paper = ratios(*(one.ours_of_paper("mixed") for one in (device, first)))
        parts.append(f"The {device.name} takes {span(ours.values())} times the time of the {first.name} with ours, {span(paper.values())} times with the better "
                     "of CL and VL")
    return ". ".join(parts) + "."


READINGS = {"1": read_1, "4": read_4, "12": read_12, "13": read_13, "14": read_14, "15": read_15, "16": read_16, "17": read_17}


# --- tables ---

def tables(device, published):
    """The tables of a device, as lines of Markdown."""
    sizes = sorted({log2_n(row) for row in device.rows if row["section"] in ("search", "rays")})
    header = ["", *(f"2^{n}" for n in sizes)]

    def cells(points, form=short):
        return [form(points[n]) if n in points else "-" for n in sizes]

    mixed = device.search("mixed")
    ours = mixed.get(OURS, {})
    rows = [[SYSTEMS[name][0], *cells(points)] for name, points in mixed.items()]
    for contender, name in (("CL", "GPU-RMQ (CL), the best of figure 12"), ("VL", "GPU-RMQ (VL), the best of figure 12")):
        rows.append([name, *cells(device.tuned(contender))])
    for name, label in ((ONE_SIDED, "GPU-RMQ (VL), compared on one side"), (TRIP, "LCA (Euler tour), the whole trip")):
        rows.append([label, *cells(device.search("mixed", names=(name,)).get(name, {}))])
    rows += [["ours: times faster than CL (t = 32) and VL, groups and chunks as in the paper", *cells(ratios(device.paper("mixed"), ours), ratio)],
             ["ours: times faster than the next best of all", *cells(ratios(device.others("mixed"), ours), ratio)]]
    for name in (OURS, CL, VL, LCA, TOUR):
        timed = device.points(("search",), "mixed", lambda row: number(row, "cold_ns"), (name,))
        rows.append([f"{SYSTEMS[name][0]}, wall clock, mean of four launches", *cells(timed.get(name, {}))])
    if device.name == "H200":
        for name in ("CL", "VL", "LCA", "LCA the whole trip"):
            rows.append([f"{name}, the authors' program", *cells(published.times(name, "H200"))])
    text = ["ns a query, mixed ranges:", "", *table(header, rows)]
    rows = []
    for workload in ("large", "medium", "small"):
        found = device.search(workload)
        rows += [[f"{SYSTEMS[name][0]}, {workload}", *cells(found[name])] for name in (OURS, CL, VL, LCA, TOUR, RTXRMQ, FULL_SCAN) if name in found]
        rows.append([f"ours: times faster than the next best, {workload}", *cells(ratios(device.others(workload), found.get(OURS, {})), ratio)])
    if rows := table(header, rows):
        text += ["", "By length of the ranges:", "", *rows]
    steps = device.steps("mixed", STEPS)
    if rows := table(header, [[STEPS[name][0], *cells(points)] for name, points in steps.items()]):
        text += ["", "The steps from CL to RTXRMQ, ns a query, mixed ranges:", "", *rows]
    build, percent = device.search("mixed", build_ms), device.search("mixed", index_percent)
    rows = [[f"build, {SYSTEMS[name][0]}", *cells(build[name])] for name in SYSTEMS if name in build]
    rows += [[f"index, {SYSTEMS[name][0]}", *cells(percent[name])] for name in SYSTEMS if name in percent]
    if rows := table(header, rows):
        text += ["", "Build, ms, and index in percent of the column:", "", *rows]
    rows = []
    for what, found in other_columns(device):
        rows += [[f"{what}: {SYSTEMS[name][0]}", *cells(points)] for name, points in found.items() if name in SYSTEMS]
        if faster := next_best(found):
            rows.append([f"{what}, ours: times faster than the next best", *cells(faster, ratio)])
    if rows := table(header, rows):
        text += ["", "Ranges in order, positions, 8-byte values, and increasing values, in which nearly every search goes down to the column:", "", *rows]
    return text + rays(device, published)


def other_columns(device):
    """What was measured beside the paper's columns, results and ranges, in words, and the times by system."""
    yield "value, f32, ranges by their left bounds", device.of_data("uniform", "value", "f32", "ascending")
    for data, result, key in (("uniform", "position", "f32"), ("uniform", "value", "f64"), ("uniform", "position", "f64"), ("increasing", "value", "f32"),
                              ("increasing", "position", "f32")):
        for workload in ("mixed", "small", "medium", "large"):
            yield f"{result}, {data + ' ' if data != 'uniform' else ''}{key}, {workload}", device.of_data(data, result, key, workload)


def next_best(found):
    """How many times faster ours is than the next best of such times; nothing if these are of ours and VL alone."""
    return ratios(least([points for name, points in found.items() if name != OURS]), found[OURS]) if {CL, OURS} <= found.keys() else {}


def losses(device):
    """A sentence on the cells of all rows of ratios to the next best in which ours is slower."""
    compared = [(f"value, f32, {workload}", ratios(device.others(workload), device.search(workload, names=(OURS,)).get(OURS, {})))
                for workload in ("mixed", "large", "medium", "small")]
    compared += [(what, next_best(found)) for what, found in other_columns(device)]
    slower = [f"{what}, 2^{n} values ({ratio(faster)})" for what, cells in compared for n, faster in cells.items() if faster < 1]
    count = sum(len(cells) for _, cells in compared)
    faster = f"{count - len(slower)} of {count} cells; it is slower in: {'; '.join(slower)}" if slower else f"all {count} cells"
    return f"Ours is faster than the next best in {faster}. " if count else ""


# Of pipelines with rays, a title and what a row is.
RAY_TABLES = {
    RTXRMQ + UPDATABLE: ("RTXRMQ, structures as published, by size of a block", "RTXRMQ, 2^{} a block"),
    RTXRMQ: ("RTXRMQ, structures compacted, by size of a block", "RTXRMQ, 2^{} a block"),
    WITH_RAYS + UPDATABLE: ("CL by rays, structures as published, by entries of the level that they search", "CL with rays, at most 2^{} entries"),
    WITH_RAYS: ("CL by rays, structures compacted, by entries of the level that they search", "CL with rays, at most 2^{} entries"),
}


def rays(device, published):
    """Ray tracing by size of blocks, and beside the authors' figures."""
    text = []
    found = {name: {workload: device.rays(name, workload) for workload in ("mixed", "large", "medium", "small")} for name in RAY_TABLES}
    sizes = sorted({n for name in found for _, n in found[name]["mixed"]})
    header = ["", *(f"2^{n}" for n in sizes)]
    for name, (title, what) in RAY_TABLES.items():
        rows = []
        for workload, cells in found[name].items():
            for part in sorted({part for part, _ in cells}):
                rows.append([what.format(part.bit_length() - 1) + f", {workload}", *(short(cells[part, n]) if (part, n) in cells else "-" for n in sizes)])
        if rows := table(header, rows):
            text += ["", f"{title}, ns a query:", "", *rows]
    rows = []
    for workload in ("large", "medium", "small"):
        best = device.search(workload, names=(RTXRMQ,)).get(RTXRMQ, {})
        theirs = published.times("RTXRMQ", "A100", workload)
        if both := ratios(best, theirs):
            rows.append([f"{workload}: here, best block", *(short(best[n]) if n in best else "-" for n in sizes)])
            rows.append([f"{workload}: the authors' on an A100, best block", *(short(theirs[n]) if n in theirs else "-" for n in sizes)])
            rows.append([f"{workload}: times as long", *(ratio(both[n]) if n in both else "-" for n in sizes)])
            blocks = best_blocks(device, workload)
            rows.append([f"{workload}: values of our best block", *(f"2^{blocks[n]}" if n in blocks else "-" for n in sizes)])
            blocks = published.blocks(workload)
            rows.append([f"{workload}: values of the authors' best block", *(f"2^{blocks[n]}" if n in blocks else "-" for n in sizes)])
    if rows := table(header, rows):
        text += ["", "RTXRMQ beside its authors' measurements, ns a query:", "", *rows]
    return text


def best_blocks(device, workload):
    """The sizes of the blocks that RTXRMQ is fastest with, as powers of two, by log2 n."""
    times = {}
    for name in (RTXRMQ, RTXRMQ + UPDATABLE):
        for (block, n), time in device.rays(name, workload).items():
            times.setdefault(n, []).append((time, block.bit_length() - 1))
    return {n: min(found)[1] for n, found in times.items()}


# Kernels as Nsight Compute names them.
PROFILED = (("answer_", "ours"), ("paper_coalesced_", "GPU-RMQ (CL)"), ("paper_vector_", "GPU-RMQ (VL)"), ("paper_one_sided_", "GPU-RMQ (VL), compared on one side"),
            ("lca_answer_", "LCA (inlabel)"), ("tour_ancestors", "LCA (Euler tour)"))


def profiled(rows):
    """What Nsight Compute counted, as lines of Markdown."""
    header = ["a query", "ns", "bytes read", "written", "requests to L2", "L2 hits, %", "L1 hits, %", "warp instructions", "memory, % of peak", "SMs, % of peak"]
    text = []
    for case in dict.fromkeys((row["workload"], row["log2_n"], row["commit"], row["date"]) for row in rows):
        workload, n, commit, date = case
        lines = []
        for row in rows:
            if (row["workload"], row["log2_n"], row["commit"], row["date"]) == case:
                name = next((name for start, name in PROFILED if row["kernel"].startswith(start)), row["kernel"])
                counts = [short(float(row[column])) for column in ("ns", "read", "written", "requests")]
                lines.append([name, *counts, row["l2"], row["l1"], short(float(row["instructions"])), row["memory"], row["sm"]])
        text += ["", f"Counted by Nsight Compute with caches flushed, at commit {commit or 'unknown'}, {date}: {workload} ranges, 2^{n} values", "", *table(header, lines)]
    return text


def origin(device):
    """Where the results of a device are from: each machine, and what it measured at which commit."""
    machines = {}
    for (commit, date), rows in sorted(device.runs().items(), key=lambda run: run[0][1], reverse=True):
        gpu, driver, cpu = (max(row[column] for row in rows) for column in ("gpu", "driver", "cpu"))
        machine = f"{gpu.split(';')[0] or 'no GPU'}, driver {driver or 'unknown'}, host {cpu.replace(';', ',')}"
        clock = max(int(row["clock_mhz"] or 0) for row in rows)
        what, apart = {device.is_of_the_paper(row) for row in rows}, {not row["gpu"] for row in rows}
        what = "all" if len(what) == 2 else "what the paper measures" if what == {True} else "ranges in order, positions, 8-byte and increasing values"
        what += " (on the CPU in a run of its own)" if len(apart) == 2 else ""
        run = f"{what} at commit {commit or 'unknown'}, {date}, multiprocessors at most at {clock} MHz"
        machines.setdefault(machine, []).append(run)
    parts = [f"{machine}: {'; '.join(runs)}" for machine, runs in machines.items()]
    spread, of_rays = (device.spread(sections) for sections in (("search", "queuing", "heat", "readers", "limit", "reads"), ("rays",)))
    on_cpu = device.spread(("search", "succinct"), on_cpu=True)
    text = ". ".join(parts) + "."
    if spread:
        text += f" In the median cell of CUDA's kernels the slowest round took {ratio(spread[1])} times as long as the fastest; at most, {ratio(spread[0])} times"
        text += f"; with ray tracing, at most {ratio(of_rays[0])} times" if of_rays else ""
        text += f"; on the CPU, at most {ratio(on_cpu[0])} times" if on_cpu else ""
        text += "."
    return text


# --- claims ---

def claim_lca(device, published):
    return "; ".join(part for part in (beside_lca(device, LCA), beside_lca(device, TOUR)) if part)


def beside_lca(device, lca):
    """How much faster the better of CL and VL is than one form of LCA."""
    faster = {workload: ratios(device.search(workload, names=(lca,)).get(lca, {}), device.paper(workload)) for workload in ("mixed", "large", "small")}
    if not faster["mixed"]:
        return ""
    slower = [f"2^{n}" for n, times in faster["mixed"].items() if times < 1]
    text = f"on mixed ranges, the better of CL and VL is {span(faster['mixed'].values())} times as fast as {SYSTEMS[lca][0]}"
    text += f", so slower with {listed(slower)} values" if slower else ""
    return text + "".join(f"; on {workload} ranges {span(faster[workload].values())} times" for workload in ("large", "small") if faster[workload])


def claim_build(device, _):
    found = device.search("mixed", build_ms)
    text = []
    for name in (LCA, TOUR, HRMQ):
        slower = ratios(found.get(name, {}), found.get(CL, {}))
        if slower:
            text.append(f"{span(slower.values())} times as fast as that of {SYSTEMS[name][0]}")
    return "CL's index is built " + ", ".join(text) if text else ""


def claim_shape(device, _):
    cells = {n: found for n, found in device.heat("CL").items() if n > 24 and (16, 32) in found}
    if not cells:
        return ""
    best = {n: min(found, key=found.get) for n, found in cells.items()}
    slower = {n: found[16, 32] / min(found.values()) for n, found in cells.items()}
    shapes = ", ".join(f"{group} and {chunk} (2^{n})" for n, (group, chunk) in best.items())
    return f"on mixed ranges, best are {shapes}; 16 and 32 take {span(slower.values())} times as long"


def claim_vl(device, _):
    found = device.search("mixed", names=(CL, VL, ONE_SIDED))
    untuned = ratios(found.get(CL, {}), least([found.get(VL, {}), found.get(ONE_SIDED, {}), *device.authors("mixed", ("VL",))]))
    tuned = ratios(device.best_vl(), device.tuned("CL"))
    if not untuned or not tuned:
        return ""
    first = [n for n in tuned if all(tuned[m] > 1 for m in tuned if m >= n)]
    text = f"on mixed ranges, with the parameters of figure 1, CL takes {span(untuned.values())} times as long as the better form of VL, and is {faster_with(untuned)}"
    text += f"; the best CL beats the best VL from 2^{first[0]} values on" if first else "; the best VL beats the best CL at every length"
    for workload in ("large", "medium", "small"):
        found = device.search(workload, names=(CL, VL, ONE_SIDED))
        untuned = ratios(found.get(CL, {}), least([found.get(VL, {}), found.get(ONE_SIDED, {})]))
        text += f"; on {workload} ranges CL is {faster_with(untuned)}" if untuned else ""
    return text


def faster_with(slower):
    """The sizes of columns with which something is faster, of how many times as long it takes with each."""
    wins = [f"2^{n}" for n, times in slower.items() if times < 1]
    return f"faster with {listed(wins)} values" if wins else "faster with no column"


def claim_hrmq(device, _):
    faster = ratios(device.search("mixed", names=(HRMQ,)).get(HRMQ, {}), device.paper("mixed"))
    threads = device.search("mixed", lambda row: int(row["threads"]), (HRMQ,)).get(HRMQ, {})
    return f"{span(faster.values())} times, mixed ranges, HRMQ on {listed([str(number) for number in sorted(set(threads.values()))])} threads" if faster else ""


def claim_rays(device, published):
    """No ratio to CL: the card has no RT cores, and the authors' program is faster on another such card."""
    parts = []
    for workload in ("large", "medium", "small"):
        here = device.search(workload, names=(RTXRMQ,)).get(RTXRMQ, {})
        slower = ratios(here, published.times("RTXRMQ", "A100", workload))
        if slower:
            parts.append(f"{span(slower.values())} times ({workload} ranges)")
    return f"neither shown nor refuted: without RT cores, our RTXRMQ takes {', '.join(parts)} as long as its authors' on an A100" if parts else ""


def claim_queue(device, _):
    found = device.steps("mixed", (QUEUE, MULTI_LOAD, NO_SHUFFLES, NO_INTRINSICS))
    parts = []
    for name, what in ((MULTI_LOAD, "without the queue"), (NO_SHUFFLES, "with queries that each thread loads instead of shuffles"), (NO_INTRINSICS, "without warp intrinsics")):
        slower = ratios(found.get(name, {}), found.get(QUEUE, {}))
        if slower:
            parts.append(f"{what} {span(slower.values())} times as long")
    return "on mixed ranges, CL takes " + ", ".join(parts) if parts else ""


CLAIMS = [
    ("GPU-RMQ has up to 8 times the throughput of LCA, above all on longer arrays.", claim_lca),
    ("The index is built two orders of magnitude faster.", claim_build),
    ("Beyond 2^24 values, CL is best with groups of 16 threads and chunks of 32.", claim_shape),
    ("CL is the choice for long columns, VL for short ones.", claim_vl),
    ("Warp-local queuing and warp intrinsics speed CL up.", claim_queue),
    ("Up to 4800 times the throughput of HRMQ on the CPU.", claim_hrmq),
    ("Up to 17 times the throughput of RTXRMQ.", claim_rays),
]


def authors(device, published):
    """Our CL, VL and LCA beside the authors' programs on the same kind of card."""
    if device.name != "H200":
        return ""
    mine = device.search("mixed", names=(CL, VL, ONE_SIDED, LCA, TOUR, TRIP))
    parts = []
    for name, contender, what in (("CL", CL, "CL"), ("VL", VL, "VL"), ("VL", ONE_SIDED, "VL, compared on one side,"), ("LCA", LCA, "LCA (inlabel)"),
                                  ("LCA", TOUR, "LCA (Euler tour)"), ("LCA the whole trip", TRIP, "whole trip of LCA (Euler tour)")):
        both = ratios(mine.get(contender, {}), published.times(name, "H200"))
        if both:
            parts.append(f"our {what} takes {span(both.values())} times as long as theirs")
    return ", ".join(parts) + ". Ratios to the next best on mixed ranges of uniform values on this card count theirs" if parts else ""


# --- the page ---

def body(devices, figures, published, folder):
    """The generated part of the page, as lines."""
    lines = []
    for device in devices:
        lines += [f"### {device.name}", "", *wrapped(origin(device)), "", *tables(device, published), *profiled(device.profile), ""]
        wrong = sum(int(row["wrong"]) for row in device.all)
        right = "All answers were right." if wrong == 0 else f"**{wrong} answers were wrong.**"
        lines += [*wrapped(losses(device) + right), ""]
    lines += ["### Figures", "", "Numbers are the paper's.", ""]
    for number, what, shown in figures:
        reading = read_18(devices) if number == "18" else by_device(devices, READINGS[number])
        lines += [*wrapped(f"**{number}**: {what}. {reading}".rstrip()), ""]
        for figure in shown:
            lines += [*wrapped(f"![Figure {figure['name']}]({folder}/figure-{figure['name']}.svg)"), ""]
    lines += ["### The paper's claims here", ""]
    lines += wrapped("The paper's abstract names an RTX 4090; these are data-center cards, and all systems were written anew for this comparison.")
    lines.append("")
    for claim, sentence in CLAIMS:
        found = by_device(devices, lambda device: sentence(device, published)) or "Not measured here."
        lines += wrapped(f"- *{claim}* {found}", "  ")
    beside = by_device(devices, lambda device: authors(device, published))
    if beside:
        lines += ["", *wrapped(f"Beside the authors' programs on another card of the kind, mixed ranges: {beside}")]
    return [*lines, ""]


def readme_lines(devices):
    """Lines of the README by their beginnings."""
    device = next((one for one in devices if one.name == "H200"), devices[0])
    machine = "B" if device.name == "H200" else "D"
    lines = {}

    def line(start, found, tuned, theirs={}):
        times = {name: short(points[28]) for name, points in found.items() if 28 in points}
        if {OURS, VL} <= times.keys():
            others = ", ".join(f"{label}: {times[name]} ns{theirs.get(label, '')}" for name, label in ((CL, "CL"), (VL, "VL"), (LCA, "LCA")) if name in times)
            lines[start] = f"{start} | {times[OURS]} ns | GPU-RMQ paper's systems, re-implemented: {others}{tuned} | GPU kernel, time per range | {machine} |"

    tuned = device.tuned("CL")
    best = f", CL with its best parameters: {short(tuned[28])} ns" if 28 in tuned else ""
    authors = {label: device.published.times(label, device.name).get(28) for label in ("CL", "VL")}
    theirs = {label: f" (its authors' program: {short(time)} ns)" for label, time in authors.items() if time}
    of_random, of_sorted = device.search("mixed", names=(OURS, CL, VL, ONE_SIDED, LCA)), device.of_data("increasing", "value", "f32", "mixed")
    for found in (of_random, of_sorted):
        found[VL] = least([found.get(VL, {}), found.get(ONE_SIDED, {})])
    line("| 2^26 ranges of mixed lengths over 2^28 random f32 values", of_random, best, theirs)
    line("| the same over sorted values", of_sorted, "")
    return lines
