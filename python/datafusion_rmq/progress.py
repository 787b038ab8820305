"""Progress bars, by tqdm or rich."""

from collections.abc import Callable
from typing import Any

__all__ = ["bar_maker"]


def bar_maker() -> Callable[[], Any]:
    """Returns what makes a bar. An ImportError says that neither library is installed."""
    try:
        import tqdm.auto
    except ImportError:
        try:
            import rich.progress
        except ImportError as error:
            raise ImportError("progress=True needs tqdm or rich: pip install tqdm") from error
        return lambda: _Rich(rich.progress.Progress(transient=True))
    return lambda: _Tqdm(tqdm.auto.tqdm(unit=" rows", unit_scale=True, leave=False))


class _Tqdm:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update(self, read: int, total: int | None) -> None:
        self._bar.total, self._bar.n = total, read
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


class _Rich:
    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("rows read", total=None)
        progress.start()

    def update(self, read: int, total: int | None) -> None:
        self._progress.update(self._task, completed=read, total=total)

    def close(self) -> None:
        self._progress.stop()
