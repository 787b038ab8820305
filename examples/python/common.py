"""What the examples share: sizes, clocks, pictures."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import matplotlib

SCALE = float(os.environ.get("RMQ_EXAMPLES_SCALE", 1))
if SCALE != 1:
    # For tests: no window opens.
    matplotlib.use("Agg")
import matplotlib.pyplot as plt

T = TypeVar("T")
PICTURES = Path(os.environ.get("RMQ_EXAMPLES_PICTURES", Path(__file__).parent / "images"))

plt.rcParams |= {"figure.figsize": (9, 4), "figure.dpi": 90, "axes.spines.top": False, "axes.spines.right": False}


def rows(full: int) -> int:
    """The number of rows of an example; with RMQ_EXAMPLES_SCALE=0.001 a thousandth, and at least 1,000."""
    return max(int(full * SCALE), 1000)


def timed(label: str, work: Callable[[], T]) -> T:
    """Does the work and prints how long it took."""
    start = time.perf_counter()
    done = work()
    print(f"{label:<60} {time.perf_counter() - start:9.3f} s")
    return done


def save(name: str) -> None:
    """Saves the figure as a picture, and shows it in a notebook."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    plt.tight_layout()
    plt.savefig(PICTURES / f"{name}.png")
    plt.show()
