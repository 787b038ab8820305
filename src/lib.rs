//! Range-minimum queries for [Apache DataFusion](https://datafusion.apache.org): the minimum, the maximum, and where it stands, of a column
//! between two positions, for millions of ranges at once.
//!
//! One call registers everything:
//!
//! ```
//! # use datafusion::prelude::*;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> datafusion::error::Result<()> {
//! let ctx = SessionContext::new();
//! datafusion_rmq::register(&ctx);
//!
//! ctx.sql("CREATE TABLE prices AS SELECT column1 AS close FROM (VALUES (5), (3), (8), (1))").await?;
//! ctx.sql("CREATE TABLE windows AS SELECT column1 AS l, column2 AS r FROM (VALUES (0, 2), (1, 3))").await?;
//! let lowest = ctx.sql("SELECT l, r, range_min('prices.close', l, r) FROM windows").await?;
//! # let n: usize = lowest.clone().collect().await?.iter().map(|b| b.num_rows()).sum();
//! # assert_eq!(n, 2);
//! lowest.show().await?;
//! # Ok(()) }
//! ```
//!
//! `SessionStateBuilderExt::with_rmq` does the same for a session that is being built.
//!
//! # What there is in SQL
//! - `range_min('table.column', l, r)`, `range_max`, `range_argmin`, `range_argmax`: scalar functions. The first
//!   argument names a column of a table, or is a subquery of one column that ends in ORDER BY.
//! - `SELECT * FROM range_min('table.column', 'windows', 'l', 'r')`, `range_max`: the same as table functions.
//! - `frame_min(value, l, r) OVER (PARTITION BY … ORDER BY …)`, `frame_max`, `frame_argmin`, `frame_argmax`: window
//!   functions whose frames differ from row to row.
//! - Plain SQL: a join by a range with GROUP BY, a correlated subquery or a lateral join over a range becomes a range join.
//! - `SELECT * FROM range_join('trades', 'quotes', 'sym', 'quotes.ts BETWEEN trades.a AND trades.b', 'min(price) AS low')`: the range join by name,
//!   and with `'include prevailing'` the row that is in force when a window opens.
//! - `rmq_indexes()`: the indexes that the session holds; `rmq_devices()`: the GPUs it can use. Options: `RmqOptions`.
//!
//! Bounds are inclusive positions, counted from 0, and clipped to the column. NULLs are skipped; a range without a value gives
//! NULL. Floats are in IEEE total order, as in DataFusion's MIN without GROUP BY. Of several extremes, the leftmost
//! has the position.
//!
//! # Without SQL
//! The crate [`rmq_engine`] answers ranges over plain slices. It depends on neither DataFusion nor Arrow.
//!
//! # How it works
//! A rule takes each call out of its expression and puts a `RangeLookup` below it; the operator finds the column's index
//! in the session's catalog, or builds it once a query, and answers the bounds of each batch. An index is kept for later
//! queries only where the table can tell that nothing has changed since.

mod common;
mod exec;
mod expr;
mod index;
mod logical_plan;
mod planner;
mod range_agg;
mod rewrite;
mod session;
mod sorted;
mod table_functions;

pub use common::options::{ByteSize, DeviceList, EngineChoice, RmqOptions};
pub use session::{SessionStateBuilderExt, register};

#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use index::devices::{DeviceEngine, DeviceSource};
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use session::register_with_devices;
