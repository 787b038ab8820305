//! Columns of one name in several tables of a subquery get names of their own, where a condition on the outer query has
//! them.
//!
//! ```text
//!   EXISTS (SELECT 1 FROM p CROSS JOIN p AS r WHERE r.ts = p.ts + q.ts)
//!
//!   Filter: r.ts = p.ts + outer(q.ts)      Projection: p.*, r.*
//!     Cross Join                             Filter: "ts#2" = "ts#1" + outer(q.ts)
//!       p                                      Projection: p.*, r.*, p.ts AS "ts#1", r.ts AS "ts#2"
//!       r                                        Cross Join: p, r
//! ```
//!
//! DataFusion makes a side of a join of the subquery, names its columns without their tables, and so compares `ts` with
//! `ts`.

use datafusion::common::{Column, Result};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;

use crate::optimizer::logical::common::names::unused_name;
use crate::optimizer::logical::common::plain_sql_rule::plain_sql_rule;
use crate::optimizer::logical::common::plans::{
    columns_of, filtered, projected, replaced, with_columns,
};

plain_sql_rule!(
    /// Gives the columns of conditions on an outer query names of their own. Does nothing if `rmq.rewrite` is false. It
    /// must run after the rules that make range joins of subqueries, and before DataFusion's rules for subqueries.
    OwnNamesOfCorrelatedColumns,
    "rmq_own_names_of_correlated_columns",
    replace
);

fn replace(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(None);
    };
    let conjuncts = split_conjunction(&filter.predicate).into_iter();
    let correlated = conjuncts.filter(|conjunct| conjunct.contains_outer());
    let mut columns: Vec<&Column> = correlated.flat_map(Expr::column_refs).collect();
    columns.sort();
    columns.dedup();
    let rows = filter.input.schema();
    let (mut old, mut new, mut added) = (vec![], vec![], vec![]);
    for column in columns {
        // The other one may be in another condition, or be the value of an IN.
        if rows.fields_with_unqualified_name(&column.name).len() > 1 {
            let name = unused_name(config, rows, &column.name);
            added.push(Expr::Column(column.clone()).alias(&name));
            new.push(Expr::Column(Column::new_unqualified(name)));
            old.push(column.clone());
        }
    }
    if added.is_empty() {
        return Ok(None);
    }
    let input = with_columns(filter.input.as_ref().clone(), added)?;
    let predicate = replaced(filter.predicate.clone(), &old, &new, input.schema())?;
    projected(filtered(input, predicate)?, columns_of(rows)).map(Some)
}
