//! A correlated subquery that returns the first row of a range by ORDER BY: an as-of join.
//!
//! ```text
//!   subquery                                                     match
//!   Limit: fetch=1                                               values  rightmost(p.value)#1
//!     Sort: p.ts DESC                                            aggs    rightmost(p.value)#1 = rightmost(p.value)
//!       Projection: p.value, p.ts                                on      p.sym = q.sym, range p.ts in (-inf, q.ts]
//!         Filter: p.sym = outer(q.sym) AND p.ts <= outer(q.ts)   build   p
//!           p
//! ```
//!
//! Each column of the row is an aggregate of the range join. Expressions over columns are evaluated above it, and only
//! for rows that match: they have a value, or an error, for no other row. Of rows with equal keys, the leftmost comes
//! first where the order is ascending, the rightmost where it is descending. With a threshold (`AND p.v <= q.x`, see
//! `threshold`), it is the first row that crosses it.

use arrow::datatypes::DataType;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, Result, ScalarValue};
use datafusion_dependent_join::from_outer;
use datafusion_expr::{Expr, ExprSchemable, Limit, LogicalPlan, Sort, SortExpr, lit, when};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::sql_text;
use crate::conditions::lossless_casts::{widens, without_lossless_casts};
use crate::conditions::rejection::{Match, Rejection, reject};
use crate::logical_plan::range_join::{RangeJoin, Unmatched};
use crate::rules::aggregate_decomposition::{AggregateDecomposition, AggregateInput};
use crate::rules::common::constant::constant;
use crate::rules::common::names::unused_name;
use crate::rules::common::plans::{below_projections, columns_of};
use crate::rules::condition_parts::{Condition, Constants, check_repeats, is_of};
use crate::rules::correlated_aggregate::{CorrelatedAggregate, Filtered, of_types, rename};
use crate::rules::distance::KeyDistance;
use crate::rules::order_by::order_by_all;
use crate::rules::threshold::Threshold;

/// Matches the plan of a subquery that is evaluated for rows of `probe`: an aggregate, or the first row of a range.
pub fn match_subquery(
    subquery: &LogicalPlan,
    probe: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Match<CorrelatedAggregate> {
    match NearestRow::of(subquery) {
        Some(nearest) => nearest.try_match(probe, config),
        None => CorrelatedAggregate::try_match(subquery, probe, config),
    }
}

/// The operators of a subquery with LIMIT.
pub struct NearestRow<'a> {
    schema: &'a DFSchema,
    /// The subquery's columns over those of LIMIT.
    columns: Vec<Expr>,
    limit: &'a Limit,
}

/// A subquery with LIMIT, in terms of the rows that are searched and of the outer query.
pub struct NearestQuery {
    pub build: LogicalPlan,
    /// The conditions that refer to the outer query.
    pub conditions: Vec<Expr>,
    /// The first expression of ORDER BY. `build` is ordered by it.
    pub order: SortExpr,
    /// The other expressions of ORDER BY.
    pub then_by: Vec<SortExpr>,
    /// The distance that is the first expression of ORDER BY, if it is one. `order` is then of its key.
    pub distance: Option<KeyDistance>,
    /// The subquery's columns.
    pub columns: Vec<Expr>,
}

impl NearestQuery {
    /// Gives the columns of `build` names that no column of the probe side has in another table, if one of them has
    /// such a name: DataFusion's physical plans know columns by these names, and one of its rules confuses them.
    pub fn with_names_of_its_own(
        mut self,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Result<Self> {
        let is_taken = |name: &str| probe.has_column_with_unqualified_name(name);
        let columns = self.build.schema().columns();
        if !columns.iter().any(|column| is_taken(&column.name)) {
            return Ok(self);
        }
        let names = columns.iter().map(Column::flat_name).map(|name| {
            if is_taken(&name) {
                unused_name(config, probe, &name)
            } else {
                name
            }
        });
        let orders = std::iter::once(&mut self.order).chain(&mut self.then_by);
        let orders = orders.map(|order| &mut order.expr);
        let distance = self.distance.iter_mut();
        let distance = distance.flat_map(|distance| [&mut distance.key, &mut distance.by]);
        let exprs = self.conditions.iter_mut().chain(&mut self.columns);
        let exprs = exprs.chain(orders).chain(distance);
        self.build = rename(self.build, names.collect(), exprs)?;
        Ok(self)
    }
}

impl<'a> NearestRow<'a> {
    pub fn of(subquery: &'a LogicalPlan) -> Option<Self> {
        let mut columns = columns_of(subquery.schema());
        match below_projections(subquery, &mut columns).ok()? {
            LogicalPlan::Limit(limit) => Some(Self {
                schema: subquery.schema(),
                columns,
                limit,
            }),
            _ => None,
        }
    }

    /// The numbers of rows of OFFSET and of LIMIT, `None` without a limit.
    pub fn rows(&self) -> Match<(usize, Option<usize>)> {
        let number = |clause: &str, expr: &Option<Box<Expr>>| -> Match<Option<usize>> {
            let Some(expr) = expr else {
                return Ok(None);
            };
            if expr.contains_outer() {
                return reject(format!("its {clause} {} differs by row", sql_text(expr)));
            }
            check_repeats(expr)?;
            let Some(value) = constant(expr)? else {
                return reject(format!("its {clause} {} is no number", sql_text(expr)));
            };
            let ScalarValue::Int64(rows) = value.cast_to(&DataType::Int64)? else {
                return reject(format!("its {clause} {} is no number", sql_text(expr)));
            };
            let negative = |_| Rejection::new(format!("its {clause} {expr} is negative"));
            rows.map(usize::try_from).transpose().map_err(negative)
        };
        let skip = number("OFFSET", &self.limit.skip)?;
        Ok((skip.unwrap_or(0), number("LIMIT", &self.limit.fetch)?))
    }

    pub fn query(&self, probe: &DFSchema, config: &dyn OptimizerConfig) -> Match<NearestQuery> {
        let mut exprs = self.columns.clone();
        let below = below_projections(&self.limit.input, &mut exprs)?;
        let LogicalPlan::Sort(Sort { expr, input, fetch }) = below else {
            return reject(
                "it has LIMIT without ORDER BY, which leaves open which rows it returns",
            );
        };
        let (skip, rows) = self.rows()?;
        let needed = rows.map_or(usize::MAX, |rows| rows.saturating_add(skip));
        if fetch.is_some_and(|fetch| fetch < needed) {
            return reject("its ORDER BY has a limit of its own");
        }
        exprs.extend(expr.iter().map(|order| order.expr.clone()));
        let input = below_projections(input, &mut exprs)?;
        let Filtered {
            build,
            conditions,
            exprs,
        } = Filtered::below(input, exprs, Constants::Filter, probe, config)?;
        let without_outer = |exprs: Vec<Expr>| {
            exprs
                .into_iter()
                .map(from_outer)
                .collect::<Result<Vec<_>>>()
        };
        let mut columns = without_outer(exprs)?;
        let keys = columns.split_off(self.columns.len());
        let mut orders: Vec<SortExpr> = vec![];
        let mut distance = None;
        for (order, by) in expr.iter().zip(keys) {
            check_repeats(&by)?;
            let mut by = SortExpr::new(by, order.asc, order.nulls_first);
            if !is_of(&by.expr, build.schema()) {
                let first = orders.is_empty().then_some(&by);
                let found = first.map(|by| KeyDistance::of(by, probe, build.schema()));
                distance = found.transpose()?.flatten();
                let Some(distance) = &distance else {
                    return reject(format!(
                        "{} is not of the rows that it orders",
                        sql_text(&order.expr)
                    ));
                };
                by.expr = distance.key.clone();
            }
            orders.push(by);
        }
        let mut orders = orders.into_iter();
        let Some(order) = orders.next() else {
            return reject("it is ordered by nothing");
        };
        Ok(NearestQuery {
            build,
            conditions: without_outer(conditions)?,
            order,
            then_by: orders.collect(),
            distance,
            columns,
        })
    }

    fn try_match(
        &self,
        probe: &DFSchema,
        config: &dyn OptimizerConfig,
    ) -> Match<CorrelatedAggregate> {
        let is_empty = self.check_limit()?;
        let NearestQuery {
            build,
            mut conditions,
            mut order,
            then_by,
            distance,
            columns,
        } = self.query(probe, config)?;
        if distance.is_some() {
            return reject("it is ordered by a distance");
        }
        let key = without_lossless_casts(&order.expr, build.schema())?;
        let threshold = Threshold::take_from(&mut conditions, key, probe, build.schema())?;
        let mut condition = Condition::try_match_with_key(
            vec![],
            conditions,
            Constants::Filter,
            Some(&order.expr),
            probe,
            build.schema(),
        )?;
        if !then_by.is_empty() && !orders_as(&condition.key, &order.expr, build.schema())? {
            return reject("it is ordered by several expressions and another one has a range");
        }
        if order_by_all(&mut condition, &order, &then_by, &build)? {
            order.expr = condition.key.clone();
        }
        if is_empty {
            condition.add_build_filter(lit(false));
        }
        let input = AggregateInput::Subquery;
        let mut decomposition =
            AggregateDecomposition::new((probe, build.schema()), &condition, input, config);
        let mut row = FirstRow {
            order: &order,
            threshold: threshold.as_ref(),
            decomposition: &mut decomposition,
        };
        let mut values = vec![];
        for value in columns {
            values.push(row.value(value)?);
        }
        let (aggregates, thresholds) = (decomposition.aggregates, decomposition.thresholds);
        let build = condition.filter_build(build)?;
        let spec = condition.into_spec(Unmatched::Keep, thresholds, aggregates, probe.metadata());
        let joined = RangeJoin::schema_of(probe, &spec)?;
        let values = of_types(values, self.schema, &joined)?;
        Ok(CorrelatedAggregate {
            build,
            spec,
            values,
            needs_match: true,
            narrowed: vec![],
        })
    }

    /// Whether the subquery returns no row; otherwise it returns one at most.
    fn check_limit(&self) -> Match<bool> {
        match self.rows()? {
            (1.., _) => reject("it has OFFSET"),
            (0, Some(rows @ 0..=1)) => Ok(rows == 0),
            (0, None) => reject("it has no limit, and may return several rows"),
            (0, Some(_)) => reject("its LIMIT is greater than 1"),
        }
    }
}

/// Whether rows that are sorted by `key` are sorted by `order`.
pub fn orders_as(key: &Expr, order: &Expr, build: &DFSchema) -> Result<bool> {
    Ok(
        without_lossless_casts(key, build)? == without_lossless_casts(order, build)?
            && widens(&order.get_type(build)?, &key.get_type(build)?),
    )
}

/// The row that comes first, of those that cross the threshold if there is one.
struct FirstRow<'a, 'b> {
    order: &'a SortExpr,
    threshold: Option<&'a Threshold>,
    decomposition: &'a mut AggregateDecomposition<'b>,
}

impl FirstRow<'_, '_> {
    /// An expression over the columns of the build side, for this row: over the range join's columns, NULL without such
    /// a row.
    fn value(&mut self, value: Expr) -> Match<Expr> {
        check_repeats(&value)?;
        let build = self.decomposition.build;
        let is_column = matches!(&value, Expr::Column(c) if build.has_column(c));
        let mut rejected = None;
        // Columns of the range join are not visited.
        let of_row = value.transform_down(|e| {
            let Expr::Column(column) = &e else {
                return Ok(Transformed::no(e));
            };
            if !build.has_column(column) {
                return Ok(Transformed::no(e));
            }
            Ok(match self.column(e.clone()) {
                Ok(found) => Transformed::new(found, true, TreeNodeRecursion::Jump),
                Err(reason) => {
                    rejected = Some(reason);
                    Transformed::no(e)
                }
            })
        })?;
        if let Some(reason) = rejected {
            return Err(reason);
        }
        if is_column {
            return Ok(of_row.data);
        }
        Ok(when(self.matches()?, of_row.data).end()?)
    }

    fn column(&mut self, column: Expr) -> Match<Expr> {
        let (order, decomposition) = (self.order, &mut self.decomposition);
        match self.threshold {
            Some(threshold) => decomposition.of_crossing_row(column, order, threshold),
            None => decomposition.of_first_row(column, order),
        }
    }

    /// Whether there is such a row.
    fn matches(&mut self) -> Match<Expr> {
        if self.threshold.is_some() {
            return Ok(self.column(lit(1_i32))?.is_not_null());
        }
        Ok(self.decomposition.count_rows().gt(lit(0_i64)))
    }
}
