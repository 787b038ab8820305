//! The rows of a join that tie for a place: whose key is not after that of the row in it. `first_rows` has the plans.

use std::sync::Arc;

use datafusion_common::{Column, JoinType};
use datafusion_dependent_join::from_outer;
use datafusion_expr::expr::BinaryExpr;
use datafusion_expr::utils::conjunction;
use datafusion_expr::{
    Aggregate, Expr, ExprSchemable, Join, Limit, LogicalPlan, Operator, Sort, SortExpr, lit,
};
use datafusion_functions_aggregate::expr_fn::{max, min};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::sql_text;
use crate::conditions::rejection::{Match, reject};
use crate::expr::key_bound::integer_limits;
use crate::logical_plan::nearest_rows::NearestRows;
use crate::rules::common::excludes_null::excludes_null;
use crate::rules::common::names::{restore_columns, unused_name};
use crate::rules::common::plans::{columns_of, filtered, projected};
use crate::rules::condition_parts::{check_repeats, conjuncts, is_of};
use crate::rules::correlated_aggregate::CorrelatedAggregate;
use crate::rules::lateral::Lateral;
use crate::rules::no_later_row::is_the_same_each_time;

/// What the column is called that has the key of a place, before its number.
const PLACE: &str = "place";

/// The join of the rows of `probe` with the rows of `build` that meet a condition and whose key is not after that of
/// the last of the first `places`.
pub fn with_ties(
    join: &Join,
    (probe, build): (&LogicalPlan, &LogicalPlan),
    condition: Expr,
    orders: &[SortExpr],
    places: usize,
    config: &dyn OptimizerConfig,
) -> Match<LogicalPlan> {
    let [SortExpr { expr: key, asc, .. }] = orders else {
        return reject("its rows that tie are by several expressions");
    };
    check_tied_key(key, &condition, (probe, build))?;
    let rows = filtered(build.clone(), condition)?;
    let (place, is_in_place) = if places == 1 {
        let first = first_key(key, *asc, rows, probe, config)?;
        let is_first = key.clone().eq(first.value);
        (first.above, is_first)
    } else {
        let last = last_key(key, orders, places, rows, probe, config)?;
        let is_before = if *asc {
            key.clone().lt_eq(last.value.clone())
        } else {
            key.clone().gt_eq(last.value.clone())
        };
        // With fewer rows all of them are asked for.
        (last.above, is_before.or(last.value.is_null()))
    };
    let filter = conjunction(join.filter.iter().cloned().chain([is_in_place]));
    let with_key = LogicalPlan::Join(Join {
        filter,
        ..join.clone()
    });
    let mut inputs = vec![place, build.clone()];
    if !std::ptr::eq(probe, join.left.as_ref()) {
        inputs.reverse();
    }
    let joined = with_key.with_new_exprs(with_key.expressions(), inputs)?;
    Ok(restore_columns(joined, &join.schema)?)
}

/// The first of these rows, after some that are skipped.
pub fn limited(rows: LogicalPlan, orders: Vec<SortExpr>, skip: usize, fetch: usize) -> LogicalPlan {
    let rows_of = |rows: usize| Box::new(lit(i64::try_from(rows).unwrap_or(i64::MAX)));
    let sort = LogicalPlan::Sort(Sort {
        expr: orders,
        input: Arc::new(rows),
        fetch: None,
    });
    LogicalPlan::Limit(Limit {
        skip: (skip > 0).then(|| rows_of(skip)),
        fetch: Some(rows_of(fetch)),
        input: Arc::new(sort),
    })
}

/// Rejects a key by which rows of `build` that meet a condition tie, if other rows than those with equal keys may.
fn check_tied_key(
    key: &Expr,
    condition: &Expr,
    (probe, build): (&LogicalPlan, &LogicalPlan),
) -> Match<()> {
    check_repeats(key)?;
    if !is_of(key, build.schema()) || !is_the_same_each_time(build)? {
        return reject("its rows may be others each time");
    }
    let conditions = conjuncts([from_outer(condition.clone())?]);
    let is_equal = |condition: &Expr| match condition {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) => [(left, right), (right, left)]
            .iter()
            .any(|(one, other)| one.as_ref() == key && is_of(other, probe.schema())),
        _ => false,
    };
    if conditions.iter().any(is_equal) {
        return reject("all of its rows tie");
    }
    let is_place = |column: &&Column| column.name.starts_with(PLACE) && column.name.contains('#');
    if conditions
        .iter()
        .any(|c| c.column_refs().iter().any(is_place))
    {
        return reject("it is joined with the rows that are not after a place already");
    }
    let excludes_null = |condition: &Expr| excludes_null(condition, key);
    if key.nullable(build.schema())? && !conditions.iter().any(excludes_null) {
        return reject(format!("{} may be NULL", sql_text(key)));
    }
    let key_type = key.get_type(build.schema())?;
    if key_type.is_floating() {
        return reject(format!("{} is a {key_type}", sql_text(key)));
    }
    Ok(())
}

/// The plan of the probe side with the key of a place, and that key.
struct Place {
    above: LogicalPlan,
    value: Expr,
}

/// The key that comes first, by MIN or MAX.
fn first_key(
    key: &Expr,
    asc: bool,
    rows: LogicalPlan,
    probe: &LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Match<Place> {
    let extreme = if asc {
        min(key.clone())
    } else {
        max(key.clone())
    };
    let key_type = key.get_type(rows.schema())?;
    if extreme.get_type(rows.schema())? != key_type {
        return reject(format!("{} is a {key_type}", sql_text(key)));
    }
    let first = Aggregate::try_new(Arc::new(rows), vec![], vec![extreme])?;
    let first = LogicalPlan::Aggregate(first);
    let mut found = CorrelatedAggregate::try_match(&first, probe.schema(), config)?;
    let Some(value) = std::mem::take(&mut found.values).into_iter().next() else {
        return reject("it has no first key");
    };
    let above = found.above(probe.clone())?;
    Ok(Place { above, value })
}

/// The key of the last of the first `places` rows, NULL where there are fewer.
fn last_key(
    key: &Expr,
    orders: &[SortExpr],
    places: usize,
    rows: LogicalPlan,
    probe: &LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Match<Place> {
    let key_type = key.get_type(rows.schema())?;
    if integer_limits(&key_type).is_none() {
        return reject(format!("{} is a {key_type}", sql_text(key)));
    }
    let last = limited(rows, orders.to_vec(), places - 1, 1);
    let last = projected(last, vec![key.clone()])?;
    let Lateral { joined, values } = Lateral::try_match(probe, &last, JoinType::Left, config)?;
    let Some(value) = values.into_iter().next().filter(|_| is_searched(&joined)) else {
        return reject("its range is not about what it is ordered by");
    };
    let name = unused_name(config, probe.schema(), PLACE);
    let mut columns = columns_of(probe.schema());
    columns.push(value.alias(&name));
    Ok(Place {
        above: projected(joined, columns)?,
        value: Expr::Column(Column::new_unqualified(name)),
    })
}

/// Whether the rows are found by a search, and not by a look at each row in its order.
pub fn is_searched(joined: &LogicalPlan) -> bool {
    let LogicalPlan::Extension(extension) = joined else {
        return true;
    };
    let Some(nearest) = extension.node.as_any().downcast_ref::<NearestRows>() else {
        return true;
    };
    let condition = nearest.condition();
    condition.residual.is_none() || !condition.spec.bounds.is_empty()
}
