//! Range-minimum queries and range joins for [Apache DataFusion](https://datafusion.apache.org): the minimum, the
//! maximum or its position, and other aggregates, over millions of ranges of rows or of a key at once, on CPU and GPU.
//!
//! One call registers the functions, the optimizer rules, the query planner and the options:
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
//! [`SessionStateBuilderExt::with_rmq`] does the same for a session that is being built. A session with a query planner
//! of its own keeps it and calls [`plan`](plan()).
//!
//! # SQL
//! - `range_min('table.column', l, r)`, `range_max`, `range_argmin`, `range_argmax`, `range_quantile`,
//!   `range_count_distinct` and others: scalar functions over the rows `l` to `r` of a column. The first argument names
//!   a column of a table, or is a subquery with one column that ends in ORDER BY.
//! - `SELECT * FROM range_min('table.column', 'windows', 'l', 'r')`, `range_max`: table functions, for all rows of a
//!   table of ranges.
//! - `frame_min(value, l, r) OVER (PARTITION BY … ORDER BY …)`, `frame_max` and the others of the family: window
//!   functions with another frame for each row.
//! - Plain SQL: an optimizer rule turns a join on a range with GROUP BY, a correlated subquery over a range, and a
//!   lateral join over a range into a range join, which aggregates the matching rows without producing them.
//! - `SELECT * FROM range_join('trades', 'quotes', 'sym', 'quotes.ts BETWEEN trades.a AND trades.b', 'min(price) AS
//!   low')`: a range join as a table function. With `'include prevailing'`, the row in force at the start of the range
//!   counts too.
//! - `rmq_indexes()` lists the cached indexes and `rmq_devices()` the GPUs. [`RmqOptions`] has the options `rmq.*`.
//!
//! Bounds are inclusive positions, counted from 0, and clipped to the column. NULLs are skipped; a range without a
//! value gives NULL. Floats are in IEEE total order, as in DataFusion's MIN without GROUP BY. Of equal extremes, the
//! leftmost one has the position.
//!
//! # How it works
//! An optimizer rule takes each call out of its expression and puts a
//! [`RangeLookup`](logical_plan::range_lookup::RangeLookup) below it. Its operator finds the column's index in the
//! session's catalog, or builds it once per query, and looks up the bounds of each batch. The index is a tree of block
//! minima, which the crate [`rmq_engine`] implements on the CPU and on NVIDIA GPUs. It is cached for later queries if
//! the table can tell that its data has not changed.
//!
//! Plain SQL becomes a [`RangeJoin`](logical_plan::range_join::RangeJoin), or
//! [`NearestRows`](logical_plan::nearest_rows::NearestRows). Its operator sorts the build side once by equality keys
//! and range key, so that the rows that match a probe row are one range of positions. Extremes come from the same
//! index, sums and counts from prefix sums. A build side that exceeds the memory limit is sorted in runs on disk.
//!
//! The index follows *GPU-RMQ: Accelerating Range Minimum Queries on Modern GPUs* by Kreis et al., 2026.
//!
//! # Extending
//! - [`logical_plan`] has the nodes and [`physical_plan`] the operators, for other rules and planners.
//! - [`plan`](plan()) plans a query in a session's own query planner.
//! - [`sql`] plans statements with ASOF JOIN anywhere; [`sql_to_statement`] parses them for a program that has
//!   `SessionState::statement_to_plan` plan them.
//! - [`VersionedTable`] lets a table provider state its version, so that indexes of its columns are kept.
//! - [`rmq_engine`] computes range minima over plain slices. It depends on neither DataFusion nor Arrow.

#![warn(clippy::pedantic)]
#![allow(
    clippy::single_match_else,
    reason = "two arms beside each other show both cases"
)]

mod exec;
mod kept;
mod optimizer;
mod planner;
mod session;
mod states;
mod table_functions;

pub use datafusion_rmq_logical::common::options::{
    ByteSize, DeviceList, EngineChoice, JoinModeChoice, PruningChoice, RangeJoinChoice, RmqOptions,
    SessionRole,
};
pub use datafusion_rmq_logical::logical_plan;
pub use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;
pub use exec::common::pieces::scan_of_files;
pub use kept::catalog::SharedIndexes;
pub use kept::table_version::{TableVersion, VersionedTable};
pub use planner::memory_limit::follow_memory_limit;
pub use planner::query_planning::plan;
pub use planner::statement::{sql, sql_to_statement};
pub use rmq_arrow::common::range_function::{
    IndexKind, RangeFunction, RangeResult, RangeStatistic,
};
pub use rmq_engine::{Comparison, Extreme, RangeEnd};
pub use session::{
    SessionStateBuilderExt, register, register_keeping_query_planner, register_versioned,
};

/// The physical operators.
///
/// The crate `datafusion-rmq-proto` writes and reads them, for engines that send plans to other processes.
pub mod physical_plan {
    pub use crate::exec::create_index::CreateIndexExec;
    pub use crate::exec::group_statistics::GroupStatisticsExec;
    pub use crate::exec::range_join::exec::RangeJoinExec;
    pub use crate::exec::range_join::mode::JoinMode;
    pub use crate::exec::range_lookup::exec::RangeLookupExec;
    pub use crate::exec::range_lookup::prepare::PrepareIndexesExec;
    pub use crate::exec::unique_groups::exec::UniqueGroupsExec;
    pub use crate::exec::window_frame::exec::WindowFrameExec;
}

/// What the other crates of this project need besides: what operators and functions are made of, for
/// `datafusion-rmq-proto`, and the steps of [`sql`] and the texts of errors, for the shell and the Python package. Not
/// part of the stable interface.
#[doc(hidden)]
pub mod parts {
    pub use crate::exec::common::note::NoteExec;
    pub use crate::exec::common::ordered_rows::{OrderedRowsExec, has_all_rows};
    pub use crate::exec::common::row_positions::RowPositionsExec;
    pub use crate::exec::common::stop::Stop;
    pub use crate::exec::range_join::pair_distance::PairDistance;
    pub use crate::exec::range_join::parts::RangeJoinParts;
    pub use crate::exec::range_join::row_join::RowJoin;
    pub use crate::exec::range_join::row_threshold::RowThreshold;
    pub use crate::exec::range_lookup::call::PhysicalCall;
    pub use crate::exec::range_lookup::parts::{
        CallParts, LookupParts, RelationParts, RequiredIndexParts, SharedRelation, WeakRelation,
        prepare_indexes, range_lookup,
    };
    pub use crate::exec::range_lookup::prepare::PhysicalLookup;
    pub use crate::exec::unique_groups::replay::ReplayExec;
    pub use crate::exec::window_frame::clauses::{has_filter, ignores_nulls};
    pub use crate::optimizer::physical::quadratic_joins::QuadraticJoin;
    pub use crate::optimizer::physical::row_order::rows_in_order;
    pub use crate::planner::range_join_planner::plan_range_join;
    pub use crate::planner::statement::{
        parse_statement, plan_statement, prepare_statement, with_known_joins,
    };
    pub use crate::session::without_rule_names;
    pub use datafusion_rmq_logical::common::similar_names::did_you_mean;
    pub use datafusion_rmq_logical::expr::index_lookup::{
        IndexLookupUdf, IndexSlot, WeakIndexSlot,
    };
    pub use datafusion_rmq_logical::expr::parts::{FunctionParts, named_functions};
    pub use datafusion_rmq_logical::expr::range_udf::ranged_column;
    pub use datafusion_rmq_logical::rules::merge_states::MergedStates;
}

#[doc(hidden)]
pub use rmq_arrow::index::devices::{DeviceEngine, DeviceSource};
#[doc(hidden)]
pub use session::register_with_devices;
