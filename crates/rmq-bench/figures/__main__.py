#!/usr/bin/env python3
"""Writes the results of `rmq-bench` into the docs, and draws the paper's figures.

    python3 crates/rmq-bench/figures                     # docs/benchmarks.md, docs/benchmarks/figure-*.svg, the README's lines
    python3 crates/rmq-bench/figures --check             # fails where they are not what the results make; needs no matplotlib
    python3 crates/rmq-bench/figures RESULTS --out DIR   # the same page and figures of other results, in a folder
    python3 crates/rmq-bench/figures --engine FILE --out DIR    # the figure of the engine's benchmark (RMQ_BENCH_CSV)

RESULTS are CSV files or folders with `results.csv`; without them, those in docs/benchmarks/results. Figures need matplotlib. They have the
paper's numbers, a panel for each device, and are SVG, to be read on a light and on a dark page. What was not measured is left out.
"""

import argparse
import difflib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import engine
import page
import plots
from results import Published, open_devices

ROOT = Path(__file__).resolve().parents[3]
DOCS, README = ROOT / "docs/benchmarks.md", ROOT / "README.md"
RESULTS = ROOT / "docs/benchmarks/results"
BEGIN, END = "<!-- results: written by crates/rmq-bench/figures -->", "<!-- end of results -->"


def docs_text(body):
    """The page with its generated part replaced."""
    text = DOCS.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"error: {DOCS} must have the marks\n{BEGIN}\n{END}")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n\n" + "\n".join(body) + "\n" + END + rest.split(END)[1]


def readme_text(lines):
    """The README with its generated lines replaced."""
    text = README.read_text().splitlines()
    for start, line in lines.items():
        found = [i for i, old in enumerate(text) if old.startswith(start)]
        if len(found) != 1:
            sys.exit(f"error: {README} must have one line that begins with: {start}")
        text[found[0]] = line
    return "\n".join(text) + "\n"


def check(texts, figures):
    """Fails where docs or figures are not what the results make."""
    wrong = plots.faults(DOCS.with_suffix(""), figures)
    for path, text in texts.items():
        lines = difflib.unified_diff(path.read_text().splitlines(), text.splitlines(), str(path.relative_to(ROOT)), "made of the results", lineterm="", n=0)
        if lines := list(lines)[:20]:
            wrong.append("\n".join(lines))
    if wrong:
        sys.exit("\n".join(wrong) + "\nerror: run python3 crates/rmq-bench/figures and commit what it writes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="*", metavar="RESULTS")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if docs or figures are not current")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--engine", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.engine:
        return engine.draw(args.engine, args.out or args.engine.parent)
    if bool(args.results) != bool(args.out):
        parser.error("RESULTS and --out go together")
    paths = [path / "results.csv" if path.is_dir() else path for path in args.results]
    paths = paths or [path for path in sorted(RESULTS.glob("*.csv")) if path.name != "published.csv"]
    published = Published(RESULTS / "published.csv")
    devices = open_devices(paths, published)
    if not devices:
        parser.error("there are no results")
    figures = plots.figures(devices)
    all_figures = [figure for *_, shown in figures for figure in shown]
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        plots.draw(args.out, all_figures)
        (args.out / "results.md").write_text("\n".join(page.body(devices, figures, published, ".")))
        return
    texts = {DOCS: docs_text(page.body(devices, figures, published, DOCS.stem)), README: readme_text(page.readme_lines(devices))}
    if args.check:
        return check(texts, all_figures)
    plots.draw(DOCS.with_suffix(""), all_figures)
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
