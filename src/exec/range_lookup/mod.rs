//! Lookups by position: for each input row with the bounds `l` and `r`, the smallest or largest value of a column in
//! the rows `l` to `r`, or the position of that value, as a further column.
//!
//! ```text
//!   logical                                  physical
//!
//!   Projection: range_min('p.close', l, r)   ProjectionExec: __range_1
//!     TableScan: windows                       RangeLookupExec: range_min(p.close) over rows l to r
//!                                                │    └── Relation p: index of p.close, from the catalog or built
//!                                              DataSourceExec: windows
//! ```
//!
//! 1. While the query is planned, each call registers with its [`Relation`](relation::Relation) the index that it
//!    needs; the relation plans one scan of all columns to be indexed and, where the plan tells enough, chooses the
//!    engine of each index.
//! 2. When the first row arrives, the relation finds the indexes in the session's catalog. It builds those that are
//!    missing or stale ([`IndexBuilder`](index_builder::IndexBuilder)): reads the columns, builds on threads that may
//!    block, and caches the indexes if the table can tell that nothing changed meanwhile. Where rows were added to a
//!    table, it reads and indexes these alone, as a further part of the index.
//! 3. For each batch the stream evaluates the bounds, queries each index once for all calls with the same bounds, and
//!    appends the results. For devices, batches are first gathered to larger ones.
//!
//! Building takes O(n) for a column of n rows, and O(n log n) to rank strings first. Answering takes O(log n) per range
//! in the worst case; a cached index leaves only this. Adding k rows to it takes O(k log n), amortised. A range with
//! rows of several parts is answered in each.
//!
//! Memory: an index takes some 7 % of its column, plus a copy of the column where the keys can't be borrowed from it.
//! Both are reserved in the session's memory pool and count against `rmq.index_memory_limit`; those on devices against
//! `rmq.device_memory_limit`. The stream itself needs the current batch, or the batches gathered for a device.
//!
//! Quantiles, and counts of values below a threshold and of distinct values, come from indexes of their own
//! (`index/column_statistics.rs`), which the CPU builds by a sort, in O(n log n), and answers in O(log n). They do not
//! refer to the column and take 1.33 bits for each value and bit of a rank. They are built anew where rows were added.
//!
//! A column of Parquet files that does not fit in memory is not collected, as the
//! [`MemoryBudget`](memory_budget::MemoryBudget) tells by the numbers of rows in the footers. One pass over the files
//! keeps the extremes of chunks, and later [`FileRows`](file_rows::FileRows) reads the rows at the edges of ranges.
//! `index/chunk_extremes.rs` has the algorithm.
//!
//! With `rmq.index_directory`, a [`ColumnFile`](persisted_columns::ColumnFile) has the values of a column of Parquet
//! files, or the extremes of its chunks, for the next process.
//!
//! A call in the ON of an outer join can't become a column of one input. It stays an expression, and
//! [`PrepareIndexesExec`](prepare::PrepareIndexesExec) below the join prepares its index.

pub(crate) mod call;
pub(crate) mod chunks_builder;
pub(crate) mod column_loader;
pub(crate) mod exec;
pub(crate) mod file_column;
pub(crate) mod file_rows;
pub(crate) mod index_builder;
pub(crate) mod kept_index;
pub(crate) mod loaded_columns;
pub(crate) mod memory_budget;
pub(crate) mod metrics;
pub(crate) mod parts;
pub(crate) mod persisted_columns;
pub(crate) mod prepare;
pub(crate) mod relation;
pub(crate) mod required;
pub(crate) mod scan;
pub(crate) mod source;
pub(crate) mod stream;
