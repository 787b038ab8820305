//! A correlated subquery with aggregates that is no range join, as a join that is grouped by the rows of the outer
//! query.
//!
//! ```text
//!   SELECT q.id, (SELECT sum(p.v) FROM p WHERE p.k BETWEEN q.a AND q.b AND p.v <> q.v) AS total FROM q
//!
//!   before                              after
//!   Projection: q.id, (<subquery>)      Projection: q.id, sum(p.v)#3
//!     q                                   Aggregate: groupBy=[row#1, q.*], aggr=[sum(p.v) FILTER (WHERE matched#2) AS sum(p.v)#3]
//!     Subquery:                             Left Join: p.k BETWEEN q.a AND q.b AND p.v <> q.v
//!       Aggregate: sum(p.v)                   WindowAggr: row_number() AS row#1
//!         Filter: p.k BETWEEN … AND …           q
//!           p                                 Projection: p.*, true AS matched#2
//!                                               p
//! ```
//!
//! The pairs are made, as in the join that one would write instead, but the join is DataFusion's or ours by what its
//! condition says. A lateral join with GROUP BY is an inner join that is grouped by its expressions, too. Where nothing
//! of both sides is compared, all pairs of rows would be made, and the query stays as it is, with the reason.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Distinct, EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, Operator, Window,
    lit, when,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::decorrelate::PullUpCorrelatedExpr;

use crate::common::sql_text::{clause, sql_text};
use crate::optimizer::condition::{Sides, comparison};
use crate::optimizer::logical::common::conditional::Branch;
use crate::optimizer::logical::common::infallible::is_infallible;
use crate::optimizer::logical::common::names::unused_name;
use crate::optimizer::logical::common::outer_columns::from_outer;
use crate::optimizer::logical::common::plans::{
    below_projection, below_projections, columns_of, replaced, with_columns,
};
use crate::optimizer::logical::condition_parts::{
    Constants, check_level, check_repeats, conjuncts, sides_of,
};
use crate::optimizer::logical::correlated_aggregate::{Filtered, of_types};
use crate::optimizer::logical::nearest_rows::check_branches;
use crate::optimizer::rejection::{Match, reject};

/// A correlated subquery as a grouped join without its first side.
pub(crate) struct GroupedSubquery {
    build: LogicalPlan,
    join_type: JoinType,
    condition: Expr,
    /// The column that numbers the rows of the first side.
    row: String,
    /// GROUP BY of the subquery.
    groups: Vec<Expr>,
    aggregates: Vec<Expr>,
    /// Conditions on groups.
    having: Vec<Expr>,
    /// The subquery's columns as expressions over the groups' columns.
    pub(crate) values: Vec<Expr>,
}

impl GroupedSubquery {
    /// Matches a subquery that is evaluated for rows of `probe`, in these branches only, and that DataFusion has no
    /// join for. With GROUP BY it has any number of rows, which an inner join has, too.
    #[expect(
        clippy::too_many_lines,
        reason = "one step for each part of a subquery"
    )]
    pub(crate) fn try_match(
        subquery: &LogicalPlan,
        join_type: JoinType,
        probe: &DFSchema,
        branches: &[Branch],
        config: &dyn OptimizerConfig,
    ) -> Match<Self> {
        let mut pull_up = PullUpCorrelatedExpr::new().with_need_handle_count_bug(true);
        if subquery.clone().rewrite(&mut pull_up).is_ok() && pull_up.can_pull_up {
            return reject("DataFusion makes a join of it");
        }
        check_groups(probe)?;
        let Grouped {
            plan,
            input,
            groups,
            calls,
            having,
            values,
        } = Grouped::from_subquery(subquery)?;
        let has_groups = !groups.is_empty();
        if has_groups && join_type != JoinType::Inner {
            return reject("it has GROUP BY");
        }
        if !has_groups && !having.is_empty() {
            return reject("it has HAVING without GROUP BY");
        }
        let count = groups.len();
        let exprs = groups.into_iter().chain(calls).collect();
        let Filtered {
            build,
            conditions,
            exprs,
        } = Filtered::below(input, exprs, Constants::Filter, probe, config)?;
        let conditions = conditions.into_iter().map(from_outer);
        let conditions: Vec<Expr> = conditions.collect::<Result<_>>()?;
        check_conditions(&conditions, probe, build.schema())?;
        let exprs = exprs.into_iter().map(from_outer);
        let mut groups: Vec<Expr> = exprs.collect::<Result<_>>()?;
        let calls = groups.split_off(count);

        let both = probe.join(build.schema())?;
        for expr in groups.iter().chain(&calls) {
            check_repeats(expr)?;
            check_level(expr, probe, build.schema())?;
        }
        let check = |expr: &Expr| match branches {
            [] => Ok(()),
            _ => check_branches(expr, &both),
        };
        conditions.iter().chain(&groups).try_for_each(check)?;
        let Some(condition) = conjunction(conditions) else {
            return reject("it compares nothing of both sides");
        };
        // A name for each column above, as those of both sides may collide.
        let named = |expr: &Expr| unused_name(config, &both, expr.schema_name());
        let group_names: Vec<String> = groups.iter().map(named).collect();
        let call_names: Vec<String> = calls.iter().map(named).collect();
        let (row, matched) = (
            unused_name(config, &both, "row"),
            unused_name(config, &both, "matched"),
        );
        let is_matched = (!has_groups).then(|| Expr::Column(Column::new_unqualified(&matched)));
        let calls = calls.into_iter().map(|call| match call.unalias() {
            Expr::AggregateFunction(call) => {
                let mut call = call;
                parts(&mut call).try_for_each(|expr| check(expr))?;
                if let Some(is_matched) = &is_matched {
                    of_matches(&mut call, is_matched, &both)?;
                }
                Ok(Expr::AggregateFunction(call))
            }
            other => reject(format!("{} is no aggregate", sql_text(&other))),
        });
        let calls: Vec<Expr> = calls.collect::<Match<_>>()?;
        let alias = |exprs: Vec<Expr>, names: &[String]| -> Vec<Expr> {
            let named = exprs.into_iter().zip(names);
            named
                .map(|(e, name)| e.unalias_nested().data.alias(name))
                .collect()
        };
        let (groups, aggregates) = (alias(groups, &group_names), alias(calls, &call_names));
        let build = match is_matched {
            Some(_) => with_columns(build, [lit(true).alias(&matched)])?,
            None => build,
        };
        let mut found = Self {
            build,
            join_type: if has_groups {
                JoinType::Inner
            } else {
                JoinType::Left
            },
            condition,
            row,
            groups,
            aggregates,
            having: vec![],
            values: vec![],
        };
        let above = found.schema(probe)?;
        let old = plan.schema().columns();
        let new = group_names.iter().chain(&call_names);
        let new = new.map(|name| Expr::Column(Column::new_unqualified(name)));
        let new = of_types(new.collect(), plan.schema(), &above)?;
        let over = |expr: Expr| -> Match<Expr> {
            let expr = from_outer(replaced(expr, &old, &new, &above)?)?;
            check_repeats(&expr)?;
            Ok(expr)
        };
        found.having = having.into_iter().map(over).collect::<Match<_>>()?;
        let values = values.into_iter().map(over).collect::<Match<Vec<_>>>()?;
        found.values = of_types(values, subquery.schema(), &above)?;
        Ok(found)
    }

    /// The columns above the join.
    pub(crate) fn schema(&self, probe: &DFSchema) -> Result<DFSchema> {
        let empty = LogicalPlan::EmptyRelation(EmptyRelation {
            produce_one_row: false,
            schema: Arc::new(probe.clone()),
        });
        Ok(self.joined(empty)?.schema().as_ref().clone())
    }

    /// Puts the join and the groups above `probe`: its columns, and those of the groups.
    pub(crate) fn above(self, probe: LogicalPlan) -> Result<LogicalPlan> {
        let having = conjunction(self.having.iter().cloned());
        let joined = LogicalPlanBuilder::from(self.joined(probe)?);
        match having {
            Some(having) => joined.filter(having)?.build(),
            None => joined.build(),
        }
    }

    fn joined(&self, probe: LogicalPlan) -> Result<LogicalPlan> {
        let columns = columns_of(probe.schema());
        let number = row_number().alias(&self.row);
        let numbered = Window::try_new(vec![number], Arc::new(probe))?;
        let joined = LogicalPlanBuilder::from(LogicalPlan::Window(numbered)).join_on(
            self.build.clone(),
            self.join_type,
            [self.condition.clone()],
        )?;
        let row = Expr::Column(Column::new_unqualified(&self.row));
        let by = std::iter::once(row).chain(columns);
        let by = by.chain(self.groups.iter().cloned()).collect();
        let groups = Aggregate::try_new(joined.build()?.into(), by, self.aggregates.clone())?;
        Ok(LogicalPlan::Aggregate(groups))
    }
}

/// The aggregate of a subquery, and what is above it.
struct Grouped<'a> {
    plan: &'a LogicalPlan,
    input: &'a LogicalPlan,
    groups: Vec<Expr>,
    calls: Vec<Expr>,
    having: Vec<Expr>,
    /// The subquery's columns.
    values: Vec<Expr>,
}

impl<'a> Grouped<'a> {
    fn from_subquery(subquery: &'a LogicalPlan) -> Match<Self> {
        let mut values = columns_of(subquery.schema());
        let mut having = vec![];
        let mut plan = below_projections(subquery, &mut values)?;
        while let LogicalPlan::Filter(filter) = plan {
            having.extend(split_conjunction_owned(filter.predicate.clone()));
            plan = &filter.input;
            while let Some(input) = below_projection(plan, values.iter_mut().chain(&mut having))? {
                plan = input;
            }
        }
        let (input, groups, calls) = match plan {
            LogicalPlan::Aggregate(aggregate) => (
                &aggregate.input,
                aggregate.group_expr.clone(),
                aggregate.aggr_expr.clone(),
            ),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                (input, columns_of(input.schema()), vec![])
            }
            other => return reject(format!("it ends in {}", clause(other))),
        };
        if groups.iter().any(|e| matches!(e, Expr::GroupingSet(_))) {
            return reject("it has several groupings");
        }
        Ok(Self {
            plan,
            input,
            groups,
            calls,
            having,
            values,
        })
    }
}

/// What an aggregate evaluates for each row.
fn parts(call: &mut AggregateFunction) -> impl Iterator<Item = &mut Expr> {
    let AggregateFunctionParams {
        args,
        filter,
        order_by,
        ..
    } = &mut call.params;
    let orders = order_by.iter_mut().map(|order| &mut order.expr);
    let filter = filter.iter_mut().map(Box::as_mut);
    args.iter_mut().chain(orders).chain(filter)
}

/// Lets an aggregate read the rows that match only: a row that matches nothing has one of NULLs.
fn of_matches(call: &mut AggregateFunction, is_matched: &Expr, both: &DFSchema) -> Result<()> {
    for expr in parts(call) {
        if !is_infallible(expr, both)? {
            *expr = when(is_matched.clone(), std::mem::take(expr)).end()?;
        }
    }
    let filter = call.params.filter.take().map(|filter| *filter);
    let filter = conjunction(std::iter::once(is_matched.clone()).chain(filter));
    call.params.filter = filter.map(Box::new);
    Ok(())
}

/// Rejects rows that DataFusion can't group by.
fn check_groups(probe: &DFSchema) -> Match<()> {
    let fields = probe.fields().iter();
    match fields.map(|f| f.data_type()).find(|t| t.is_nested()) {
        Some(DataType::List(_) | DataType::LargeList(_)) | None => Ok(()),
        Some(nested) => reject(format!("the outer query has a column that is a {nested}")),
    }
}

/// Rejects conditions that compare nothing of both sides with each other.
fn check_conditions(conditions: &[Expr], probe: &DFSchema, build: &DFSchema) -> Match<()> {
    let compares = |sides: &Sides<'_, Expr>| -> Match<bool> {
        let mut compares = false;
        for conjunct in conjuncts(conditions.iter().cloned()) {
            check_repeats(&conjunct)?;
            check_level(&conjunct, probe, build)?;
            let op = sides.operands(&conjunct).and_then(|(_, op, _)| op);
            let is_equality = |op| matches!(op, Operator::Eq | Operator::IsNotDistinctFrom);
            compares |= op.is_some_and(|op| is_equality(op) || comparison(op).is_some())
                || !sides.ranges(&conjunct)?.is_empty();
        }
        Ok(compares)
    };
    if sides_of(probe, build, compares)? {
        return Ok(());
    }
    reject("it compares nothing of both sides")
}
