//! Aggregates of window frames that slide, answered by the structures of a range join.
//!
//! ```text
//!   min(v) OVER (PARTITION BY s ORDER BY ts RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW)
//!
//!   before                               after
//!   BoundedWindowAggExec: min(v) …       WindowFrameExec: min(v) …: minima
//!     SortExec: s, ts                      SortExec: s, ts
//! ```
//!
//! DataFusion moves the ends of a frame row by row and tells an accumulator each row that enters and leaves it. Here
//! the frames of many rows are found first, and then answered as ranges of positions, as those of `frame_min`:
//!
//! 1. `stream` reads rows, sorted by PARTITION BY and ORDER BY, until there are as many new ones as were kept.
//! 2. `bounds` finds the frame of each row. Both ends only move forward within a group, but for those at
//!    a distance of days or months, which are searched. A frame is final if a row
//!    behind it is known, or the end of its group. A bound beyond the type of the key is before or after all keys, but
//!    for NULLs, which are peers of one another only.
//! 3. `call` answers the final frames of all groups at once: MIN and MAX by levels of chunk minima, SUM, COUNT and AVG
//!    by prefix sums and block sums, first and last values by position, those that are not NULL by the nearest position
//!    that has one, the nth by DataFusion's function, medians, percentiles and numbers of distinct values by order
//!    statistics unless the frames are short. An aggregate whose accumulator can't let a row go, which is an
//!    error in DataFusion, reads the rows of each frame, or merges states of blocks of rows.
//! 4. Rows with final frames are returned, in the order and the batches of the input. Of their columns those are kept
//!    that later frames can still reach.
//!
//! Each row is looked at a constant number of times, however long the frames are, because as many rows are read as are
//! kept. Memory: the rows of the longest frame, twice. The memory pool is told, and cannot refuse: DataFusion's
//! operators have the same rows.
//!
//! The order of the output and its other properties are those of DataFusion's operator, which this one has within it.
//!
//! Seconds for 10^6 rows in one group, the sort included, which takes 2 (two threads of a shared machine; a dev build,
//! where the engine is optimized and DataFusion is not):
//!
//! ```text
//!                             before   after
//!   MIN, ROWS of 10             17      2.4
//!   MIN, ROWS of 1,000          22      1.9
//!   MIN, ROWS of 100,000        19      1.9
//!   SUM, ROWS of 10             26      2.5
//!   SUM, ROWS of 100,000        26      2.9
//!   MIN, RANGE of 1,000        108      5.0
//!   MIN, RANGE of 100,000       99      7.1
//! ```

pub(crate) mod accumulated;
pub(crate) mod bounds;
pub(crate) mod call;
pub(crate) mod clauses;
pub(crate) mod exec;
pub(crate) mod stream;
