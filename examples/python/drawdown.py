# %% [markdown]
# # Drawdown of an index, and when it recovered
#
# How far below the high of the last 250 days did the index close, and on which day did it first reach that high again?
# The first is a rolling maximum, which pandas has. The second needs a search for each day, which it has not.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import pandas as pd

import datafusion_rmq as rmq
from common import rows, save, timed

DAYS = rows(5_000_000)
WINDOW = 250
draw = np.random.default_rng(1)
close = 1000 * np.exp(np.cumsum(draw.normal(0, 0.011, DAYS)))

# %%
day = np.arange(DAYS)


def trailing_high() -> tuple[rmq.RangeIndex, npt.NDArray[np.float64]]:
    index = rmq.RangeIndex(close)
    return index, index.max(day - WINDOW + 1, day)


index, high = timed("RangeIndex: trailing high", trailing_high)
recovered = timed("RangeIndex: day of recovery", lambda: index.first_at_least(day, DAYS, high))
rolling = timed("pandas: rolling(250).max()", lambda: pd.Series(close).rolling(WINDOW, min_periods=1).max())
assert (high == rolling).all()

# %%
# What NumPy does instead of the search: a loop over the days, here over some of them.
some = draw.integers(0, DAYS, 1000)


def loop() -> npt.NDArray[np.int64]:
    found = []
    for at in some:
        above = close[at:] >= high[at]
        found.append(at + above.argmax() if above.any() else -1)
    return np.array(found)


assert (timed("NumPy: day of recovery, for 1,000 of the days", loop) == recovered[some]).all()

# %%
# The deepest drawdown in the first eighty years of those that a picture of four has room for.
soon = (day < 80 * WINDOW) & (recovered > day) & (recovered - day < 2 * WINDOW)
worst = int(np.where(soon, close / high, 1).argmin())
back = recovered[worst]
begin = max(worst - WINDOW, 0)
shown = slice(begin, begin + 4 * WINDOW)
figure, (top, bottom) = plt.subplots(2, 1, sharex=True, height_ratios=[2, 1])
top.plot(day[shown], close[shown], lw=1, label="close")
top.plot(day[shown], high[shown], lw=1, label=f"high of {WINDOW} days")
top.axvspan(worst, back, color="tab:red", alpha=0.1)
top.plot([worst, back], [high[worst]] * 2, "--", lw=1, color="tab:red")
top.text((worst + back) / 2, high[worst] * 1.01, f"{back - worst} days to recover", ha="center", va="bottom")
top.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
bottom.fill_between(day[shown], 100 * (close[shown] / high[shown] - 1), color="tab:red", alpha=0.4)
bottom.set(xlabel="day", ylabel="drawdown, %")
save("drawdown")
