//! A correlated subquery with ORDER BY and LIMIT about a prefix, as the first of the rows that are joined by it.
//!
//! ```text
//!   FROM calls q, LATERAL (SELECT p.name FROM codes p WHERE q.number LIKE p.prefix || '%' ORDER BY length(p.prefix) DESC LIMIT 1) x
//!
//!   Filter: rank#3 <= 1
//!     WindowAggr: row_number() PARTITION BY [row#1] ORDER BY [length(p.prefix) DESC] AS rank#3
//!       Inner Join: q.number LIKE p.prefix || '%'
//!         WindowAggr: row_number() AS row#1
//!           q
//!         p
//! ```
//!
//! Few rows have the prefix of another, but no range of them in one order has all: the join finds either side's
//! (`prefixes`), where nearest rows would look at all.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, SortExpr, Window, lit, when,
};
use datafusion::optimizer::OptimizerConfig;

use crate::optimizer::logical::common::names::unused_name;
use crate::optimizer::logical::common::plans::{filtered, with_columns};
use crate::optimizer::logical::condition_parts::{check_level, check_repeats, conjuncts, sides_of};
use crate::optimizer::logical::correlated_aggregate::of_types;
use crate::optimizer::logical::nearest_row::{NearestQuery, NearestRow};
use crate::optimizer::prefixes::is_about_prefix;
use crate::optimizer::rejection::{Match, reject};

/// A correlated subquery as joined rows, without its first side.
pub(crate) struct RankedSubquery {
    build: LogicalPlan,
    join_type: JoinType,
    condition: Expr,
    orders: Vec<SortExpr>,
    /// The rows of each row of the first side that are left out, and the last one that is not.
    skip: usize,
    last: Option<usize>,
    /// The column that numbers the rows of the first side, and the one that numbers its rows.
    row: String,
    rank: String,
    /// The subquery's columns as expressions over the columns of both sides.
    pub(crate) values: Vec<Expr>,
}

impl RankedSubquery {
    /// Matches the plan of a subquery with LIMIT that is evaluated for rows of `probe`. A left join keeps a row without
    /// a row of the subquery, with NULLs.
    pub(crate) fn try_match(
        subquery: &LogicalPlan,
        join_type: JoinType,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let Some(limited) = NearestRow::of(subquery) else {
            return reject("it has no LIMIT");
        };
        let (skip, fetch) = limited.rows()?;
        let is_kept = join_type == JoinType::Left;
        if is_kept && (skip > 0 || fetch == Some(0)) {
            return reject("it has OFFSET");
        }
        let NearestQuery {
            mut build,
            conditions,
            order,
            then_by,
            distance,
            columns,
        } = limited
            .query(probe, config)?
            .with_names_of_its_own(probe, config)?;
        if distance.is_some() {
            return reject("it is ordered by a distance");
        }
        let conditions = conjuncts(conditions);
        let (of_prefix, others): (Vec<_>, Vec<_>) =
            conditions.iter().partition(|e| is_about_prefix(*e));
        let has_range = sides_of(probe, build.schema(), |sides| -> Result<bool> {
            let mut has_range = false;
            for other in others {
                has_range |= !sides.ranges(other)?.is_empty() || sides.compared(other)?.is_some();
            }
            Ok(has_range)
        })?;
        if of_prefix.is_empty() || has_range {
            return reject("it is not about a prefix");
        }
        let mut orders = vec![order];
        orders.extend(then_by);
        let of_orders = orders.iter().map(|order| &order.expr);
        for expr in conditions.iter().chain(&columns).chain(of_orders) {
            check_repeats(expr)?;
            check_level(expr, probe, build.schema())?;
        }
        let Some(condition) = conjunction(conditions) else {
            return reject("it compares nothing of both sides");
        };
        let both = probe.join(build.schema())?;
        let name = |described| unused_name(config, &both, described);
        let (row, rank, found) = (name("row"), name("rank"), name("found"));
        let mut values = columns;
        if is_kept {
            // An expression has a value only where there is a row.
            let is_found = Expr::Column(Column::new_unqualified(&found));
            for value in &mut values {
                *value = when(is_found.clone().is_not_null(), std::mem::take(value)).end()?;
            }
            build = with_columns(build, [lit(true).alias(found)])?;
        }
        let joined = probe.join(build.schema())?;
        let values = of_types(values, subquery.schema(), &joined)?;
        Ok(Self {
            build,
            join_type,
            condition,
            orders,
            skip,
            last: fetch.map(|fetch| fetch.saturating_add(skip)),
            row,
            rank,
            values,
        })
    }

    /// Whether a row of the first side has at most one row.
    pub(crate) fn is_single(&self) -> bool {
        self.last.is_some_and(|last| last <= self.skip + 1)
    }

    /// The columns that the join adds to those of the first side.
    pub(crate) fn columns(&self) -> &DFSchema {
        self.build.schema()
    }

    /// Puts the join, and the filter by rank, above `probe`.
    pub(crate) fn above(self, probe: LogicalPlan) -> Result<LogicalPlan> {
        let number = row_number().alias(&self.row);
        let numbered = LogicalPlan::Window(Window::try_new(vec![number], Arc::new(probe))?);
        let joined = LogicalPlanBuilder::from(numbered)
            .join_on(self.build, self.join_type, [self.condition])?
            .build()?;
        let row = Expr::Column(Column::new_unqualified(&self.row));
        let rank = row_number()
            .partition_by(vec![row])
            .order_by(self.orders)
            .build()?
            .alias(&self.rank);
        let ranked = LogicalPlan::Window(Window::try_new(vec![rank], Arc::new(joined))?);
        let rank = || Expr::Column(Column::new_unqualified(&self.rank));
        let number = |rows: usize| lit(u64::try_from(rows).unwrap_or(u64::MAX));
        let mut passed = rank().gt(number(self.skip));
        if let Some(last) = self.last {
            passed = passed.and(rank().lt_eq(number(last)));
        }
        filtered(ranked, passed)
    }
}
