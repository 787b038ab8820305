//! A correlated subquery that returns the first row of a range by ORDER BY: an as-of join.
//!
//! ```text
//!   subquery                                                     match
//!   Limit: fetch=1                                               values  __rmq_1
//!     Sort: p.ts DESC                                            aggs    __rmq_1 = rightmost(p.value)
//!       Projection: p.value, p.ts                                on      p.sym = q.sym, range p.ts in (-inf, q.ts]
//!         Filter: p.sym = outer(q.sym) AND p.ts <= outer(q.ts)   build   p
//!           p
//! ```
//!
//! Each column of the row is an aggregate of the range join. Expressions over columns are evaluated above it, and only for rows that match: they have a
//! value, or an error, for no other row. Of rows with equal keys, the leftmost comes first where the order is ascending, the rightmost where it is descending.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Expr, FetchType, Limit, LogicalPlan, SkipType, Sort, SortExpr, lit, when,
};
use datafusion::optimizer::OptimizerConfig;

use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::rewrite::common::conditional::Branch;
use crate::rewrite::range_join::aggregate_decomposition::{AggregateDecomposition, AggregateInput};
use crate::rewrite::range_join::condition::{Condition, Constants, check_repeats};
use crate::rewrite::range_join::correlated_aggregate::{
    CorrelatedAggregate, Filtered, above, from_outer, of_types, substitute,
};
use crate::rewrite::range_join::rejection::{Match, reject};

/// Matches the plan of a subquery that is evaluated for rows of `probe`, in these branches only: an aggregate, or the first row of a range.
pub(crate) fn match_subquery(
    subquery: &LogicalPlan,
    probe: &DFSchema,
    branches: &[Branch],
    config: &dyn OptimizerConfig,
) -> Match<CorrelatedAggregate> {
    match NearestRow::of(subquery) {
        Some(nearest) => nearest.try_match(probe, branches, config),
        None => CorrelatedAggregate::try_match(subquery, probe, branches, config),
    }
}

/// The operators of a subquery with LIMIT.
struct NearestRow<'a> {
    subquery: &'a LogicalPlan,
    /// Projections and aliases above LIMIT, from the highest.
    above_limit: Vec<&'a LogicalPlan>,
    limit: &'a Limit,
}

impl<'a> NearestRow<'a> {
    fn of(subquery: &'a LogicalPlan) -> Option<Self> {
        let (above_limit, below) = renamings(subquery);
        match below {
            LogicalPlan::Limit(limit) => Some(Self {
                subquery,
                above_limit,
                limit,
            }),
            _ => None,
        }
    }

    fn try_match(
        &self,
        probe: &DFSchema,
        branches: &[Branch],
        config: &dyn OptimizerConfig,
    ) -> Match<CorrelatedAggregate> {
        let is_empty = self.check_limit()?;
        let (above_sort, below) = renamings(&self.limit.input);
        let LogicalPlan::Sort(Sort { expr, input, fetch }) = below else {
            return reject(
                "it has LIMIT without ORDER BY, which leaves open which rows it returns",
            );
        };
        let ([order], None) = (expr.as_slice(), fetch) else {
            return reject("it is not ordered by one expression");
        };
        let (below_sort, input) = renamings(input);
        let Filtered {
            build,
            conditions,
            renamed,
        } = Filtered::below(input, Constants::Filter, probe, config)?;

        // All columns in terms of the build side, in the names that it has now.
        let mut columns = Columns {
            names: unfiltered(input).schema().columns(),
            values: vec![],
        };
        for name in &columns.names {
            columns.values.push(renamed(Expr::Column(name.clone()))?);
        }
        columns.through(&below_sort)?;
        let by = substitute(&order.expr, &columns.names, &columns.values)?;
        let order = SortExpr::new(by, order.asc, order.nulls_first);
        columns.through(&above_sort)?;
        columns.through(&self.above_limit)?;

        let conditions = conditions.into_iter();
        let conditions = conditions
            .map(|c| from_outer(renamed(c)?))
            .collect::<Result<_, _>>()?;
        let mut condition = Condition::try_match_with_key(
            vec![],
            conditions,
            Constants::Filter,
            Some(&order.expr),
            probe,
            build.schema(),
        )?;
        if !condition.excludes_null_keys(build.schema())? && !filters_nulls(&build, &condition.key)
        {
            return reject(format!(
                "{} may be NULL, which takes part in ORDER BY; a bound or IS NOT NULL would exclude it",
                condition.key
            ));
        }
        condition.guard(branches, probe)?;
        if is_empty {
            condition.add_build_filter(lit(false));
        }
        let mut decomposition = AggregateDecomposition {
            config,
            probe,
            build: build.schema(),
            key: &condition.key,
            input: AggregateInput::Subquery,
            aggregates: vec![],
        };
        let mut values = vec![];
        for value in columns.values {
            values.push(of_row(value, &order, &mut decomposition)?);
        }
        let aggregates = decomposition.aggregates;
        let build = condition.filter_build(build)?;
        let spec = RangeJoinSpec {
            thresholds: vec![],
            unmatched: Unmatched::Keep,
            on: condition.on,
            key: condition.key,
            bounds: condition.bounds,
            prevailing: false,
            aggregates,
            metadata: probe.metadata().clone().into_iter().collect(),
        };
        let joined = RangeJoin::schema_of(probe, &spec)?;
        let types = self.subquery.schema().fields().iter();
        let values = of_types(values, types.map(|f| f.data_type()), &joined)?;
        Ok(CorrelatedAggregate {
            build,
            spec,
            values,
            needs_match: true,
        })
    }

    /// Whether the subquery returns no row; otherwise it returns one at most.
    fn check_limit(&self) -> Match<bool> {
        match self.limit.get_skip_type()? {
            SkipType::Literal(0) => {}
            _ => return reject("it has OFFSET"),
        }
        match self.limit.get_fetch_type()? {
            FetchType::Literal(Some(rows @ 0..=1)) => Ok(rows == 0),
            FetchType::Literal(None) => reject("it has no limit, and may return several rows"),
            _ => reject("its LIMIT is greater than 1"),
        }
    }
}

/// The columns of a plan as expressions.
struct Columns {
    names: Vec<Column>,
    values: Vec<Expr>,
}

impl Columns {
    /// Makes them the columns above these projections and aliases, from the highest to the lowest.
    fn through(&mut self, renamings: &[&LogicalPlan]) -> Match<()> {
        for plan in renamings.iter().rev() {
            if let LogicalPlan::Projection(projection) = plan {
                self.values = above(projection, &self.names, &self.values)?;
            }
            self.names = plan.schema().columns();
        }
        Ok(())
    }
}

/// The projections and aliases at the top of a plan, and what is below them.
fn renamings(mut plan: &LogicalPlan) -> (Vec<&LogicalPlan>, &LogicalPlan) {
    let mut renamings = vec![];
    loop {
        let input = match plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            _ => return (renamings, plan),
        };
        renamings.push(plan);
        plan = input;
    }
}

/// What is below the filters at the top of a plan.
fn unfiltered(mut plan: &LogicalPlan) -> &LogicalPlan {
    while let LogicalPlan::Filter(filter) = plan {
        plan = &filter.input;
    }
    plan
}

/// Whether a filter of the build side excludes NULLs of the key.
fn filters_nulls(build: &LogicalPlan, key: &Expr) -> bool {
    match build {
        LogicalPlan::Filter(filter) => {
            let conjuncts = split_conjunction(&filter.predicate);
            let excludes = |e: &&Expr| matches!(e, Expr::IsNotNull(checked) if **checked == *key);
            conjuncts.iter().any(excludes) || filters_nulls(&filter.input, key)
        }
        _ => false,
    }
}

/// An expression over the columns of the build side, for the row that comes first: over the range join's columns, NULL if nothing matches.
fn of_row(
    value: Expr,
    order: &SortExpr,
    decomposition: &mut AggregateDecomposition,
) -> Match<Expr> {
    check_repeats(&value)?;
    let is_column = matches!(&value, Expr::Column(c) if decomposition.build.has_column(c));
    let mut rejected = None;
    // Columns of the range join are not visited.
    let of_row = value.transform_down(|e| {
        let Expr::Column(column) = &e else {
            return Ok(Transformed::no(e));
        };
        if !decomposition.build.has_column(column) {
            return Ok(Transformed::no(e));
        }
        Ok(match decomposition.of_first_row(e.clone(), order) {
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
    let matches = decomposition.count_rows().gt(lit(0_i64));
    Ok(when(matches, of_row.data).end()?)
}
