//! Joins that compare every pair of rows, or of rows with equal keys or in a wide range, and why; and aggregates that
//! read very many pairs, as that of a subquery may which became a join with GROUP BY.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;

use crate::exec::common::note::NoteExec;
use crate::exec::common::statistics::expected_rows;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::row_threshold::renumbered;
use crate::optimizer::cost::decision::{are_slow_to_aggregate, are_slow_to_join};
use crate::optimizer::cost::equal_rows::{Sides, equal_pairs};
use crate::optimizer::cost::range_rows::rows_in_range;
use crate::optimizer::physical::joins_to_range_joins::{
    compared_pairs, compares_without_range, why_stays,
};
use crate::optimizer::physical::no_range::why_wide_range;
use datafusion_rmq_logical::common::options::{RangeJoinChoice, RmqOptions};
use datafusion_rmq_logical::conditions::written::Conditions;
use datafusion_rmq_logical::rules::common::max_rows::FEW_ROWS;

/// A join that compares every pair of rows, or very many pairs of rows with equal keys or in its range, which another
/// spelling may spare.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuadraticJoin {
    /// The pairs that it compares, if statistics tell.
    pub pairs: Option<u128>,
    /// Which pairs these are, after a space: those with equal keys, or in its range. Empty for all.
    pub which: &'static str,
    /// Why, and what to write instead, where there is something.
    pub reason: String,
    /// The operators of its condition.
    operators: usize,
}

impl QuadraticJoin {
    /// Whether it is expected to take more than a second, if statistics tell.
    #[must_use]
    pub fn is_slow(&self) -> Option<bool> {
        let is_slow = |pairs| are_slow_to_join(pairs, self.operators);
        self.pairs.map(is_slow)
    }

    /// The join at the root of this plan, if it is one. Those with few rows on one side, or too few pairs, are none.
    /// Nor is one with equality keys whose pairs nothing tells, unless it compares its sides otherwise than a range
    /// does.
    fn from_plan(
        plan: &Arc<dyn ExecutionPlan>,
        conditions: &Conditions,
        options: &RmqOptions,
    ) -> Option<Self> {
        if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
            return Self::of_alternatives(join, conditions);
        }
        if let Some(join) = plan.downcast_ref::<HashJoinExec>()
            && join.filter().is_none()
        {
            return Self::of_repeated_keys(join);
        }
        let operators = filter_of(plan).map_or(0, operators);
        let why_not_ours = || Some(conditions.named_in(why_not_ours(plan, options)?));
        if plan.is::<HashJoinExec>() || plan.is::<SortMergeJoinExec>() {
            let pairs = compared_pairs(plan);
            let has_few = || plan.children().into_iter().any(has_few_rows);
            let is_noted = match pairs {
                Some(pairs) => are_slow_to_join(pairs, operators),
                None => compares_without_range(plan) && !has_few(),
            };
            if !is_noted {
                return None;
            }
            return Some(Self {
                pairs,
                which: EQUAL_KEYS,
                reason: why_not_ours()?,
                operators,
            });
        }
        let (left, right, is_crossed) =
            if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
                (join.left(), join.right(), join.filter().is_none())
            } else {
                let join = plan.downcast_ref::<CrossJoinExec>()?;
                (join.left(), join.right(), true)
            };
        if [left, right].into_iter().any(has_few_rows) {
            return None;
        }
        let [left, right] = [left, right].map(expected_rows);
        let pairs = left.zip(right).map(|(l, r)| l as u128 * r as u128);
        let reason = if is_crossed {
            // Every pair is in the result, which may be what is wanted.
            if pairs.is_some_and(|pairs| !are_slow_to_join(pairs, operators)) {
                return None;
            }
            "it has no condition".to_string()
        } else {
            why_not_ours()?
        };
        Some(Self {
            pairs,
            which: "",
            reason,
            operators,
        })
    }

    /// A range join that is slow, as its range has all alternatives of an OR and very many pairs.
    fn of_alternatives(join: &RangeJoinExec, conditions: &Conditions) -> Option<Self> {
        let rows = join.returned_rows()?;
        if rows.join_type != JoinType::Inner || rows.limit.is_some() || rows.threshold().is_some() {
            return None;
        }
        let build_column = |index: usize| Ok(rows.build_columns[index]);
        let filter = renumbered(rows.residual()?, build_column).ok()?;
        let reason = why_wide_range(&filter, join.probe(), join.build())?;
        let (pairs, operators) = (pairs_in_ranges(join).ok()??, operators(&filter));
        are_slow_to_join(pairs, operators).then(|| Self {
            pairs: Some(pairs),
            which: " in its range",
            reason: conditions.named_in(reason),
            operators,
        })
    }

    /// A join without a further condition that finds out which rows of one side have a row of the other. It is slow, as
    /// very many of these have each key.
    fn of_repeated_keys(join: &HashJoinExec) -> Option<Self> {
        use JoinType::{LeftAnti, LeftMark, LeftSemi, RightAnti, RightMark, RightSemi};
        let searched = match join.join_type() {
            LeftSemi | LeftAnti | LeftMark => join.right(),
            RightSemi | RightAnti | RightMark => join.left(),
            _ => return None,
        };
        if below_moves(searched).is::<AggregateExec>() {
            return None;
        }
        let sides = Sides {
            on: join.on(),
            probe: join.left(),
            build: join.right(),
        };
        let pairs = equal_pairs(&sides).ok()??;
        let operators = 0;
        are_slow_to_join(pairs, operators).then(|| Self {
            pairs: Some(pairs),
            which: EQUAL_KEYS,
            reason: "it looks for one row of each key among all that have it: write IN (SELECT DISTINCT …), or for \
                     EXISTS FROM (SELECT DISTINCT …)"
                .to_string(),
            operators,
        })
    }

    /// The joins of a physical plan that compare every pair of rows, from the root on. `query` is the logical plan that
    /// it was made of: it has the names of tables.
    #[must_use]
    pub fn all_in(
        plan: &Arc<dyn ExecutionPlan>,
        query: &LogicalPlan,
        config: &ConfigOptions,
    ) -> Vec<Self> {
        let options = RmqOptions::of(config);
        let conditions = Conditions::of(query);
        let mut found = vec![];
        let visited = plan.apply(|plan| {
            found.extend(Self::from_plan(plan, &conditions, &options));
            Ok(TreeNodeRecursion::Continue)
        });
        if let Err(error) = visited {
            log::debug!("a plan is not visited: {error}");
        }
        found
    }
}

const EQUAL_KEYS: &str = " with equal keys";

/// The plan whose rows this one returns, with other columns or in other partitions.
fn below_moves(mut plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    while plan.is::<ProjectionExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
    {
        let [below] = plan.children()[..] else {
            break;
        };
        plan = below;
    }
    plan
}

/// About how many pairs are in the ranges of a range join, if something tells.
fn pairs_in_ranges(join: &RangeJoinExec) -> Result<Option<u128>> {
    let spec = join.spec();
    let sides = Sides {
        on: &spec.on,
        probe: join.probe(),
        build: join.build(),
    };
    let rows = rows_in_range(&sides, &spec.key, &spec.bounds)?;
    let pairs = rows.zip(expected_rows(join.probe()));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, which is positive"
    )]
    Ok(pairs.map(|(rows, ranges)| (rows * ranges as f64) as u128))
}

fn filter_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&JoinFilter> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        join.filter()
    } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        join.filter().as_ref()
    } else {
        plan.downcast_ref::<NestedLoopJoinExec>()?.filter()
    }
}

/// How many operators and functions a filter has.
fn operators(filter: &JoinFilter) -> usize {
    let mut operators = 0;
    let visited = filter.expression().apply(|part| {
        operators += usize::from(!part.children().is_empty());
        Ok(TreeNodeRecursion::Continue)
    });
    if let Err(error) = visited {
        log::debug!("a condition is not visited: {error}");
    }
    operators
}

fn has_few_rows(side: &Arc<dyn ExecutionPlan>) -> bool {
    expected_rows(side).is_some_and(|rows| rows <= FEW_ROWS)
}

/// Why a join with a filter is no range join; `None` if it has none.
fn why_not_ours(plan: &Arc<dyn ExecutionPlan>, options: &RmqOptions) -> Option<String> {
    if !options.rewrite {
        Some("rmq.rewrite is false".to_string())
    } else if options.range_joins == RangeJoinChoice::Never {
        Some("rmq.range_joins is 'never'".to_string())
    } else {
        why_stays(plan, options.range_joins)
    }
}

/// An aggregate reads so many pairs for each row of the larger side of its join that it is worth a note, if these are
/// many: a join by a key of the smaller side makes one.
const MANY_PAIRS_A_ROW: u128 = 32;

/// About how many pairs the join below an aggregate makes for it, if these are very many.
fn aggregated_pairs(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<u128>> {
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else {
        return Ok(None);
    };
    // The others read what these return.
    if aggregate.mode().input_mode() != AggregateInputMode::Raw {
        return Ok(None);
    }
    let input = below_moves(aggregate.input());
    let (sides, pairs) = if let Some(join) = input.downcast_ref::<RangeJoinExec>() {
        let rows = join.returned_rows();
        if rows.is_none_or(|rows| rows.returns_build_rows() || rows.limit.is_some()) {
            return Ok(None);
        }
        ([join.probe(), join.build()], pairs_in_ranges(join)?)
    } else if let Some(join) = input.downcast_ref::<HashJoinExec>() {
        use JoinType::{Full, Inner, Left, Right};
        if !matches!(join.join_type(), Inner | Left | Right | Full) {
            return Ok(None);
        }
        let sides = Sides {
            on: join.on(),
            probe: join.left(),
            build: join.right(),
        };
        ([join.left(), join.right()], equal_pairs(&sides)?)
    } else {
        return Ok(None);
    };
    let rows = sides.map(expected_rows);
    let rows = rows.into_iter().flatten().max().unwrap_or(0) as u128;
    let fewest = rows.saturating_mul(MANY_PAIRS_A_ROW);
    Ok(pairs.filter(|pairs| *pairs >= fewest && are_slow_to_aggregate(*pairs)))
}

/// Puts a note above each join that compares every pair of rows: why it is no range join; and above each aggregate that
/// reads very many pairs. Plans of EXPLAIN and EXPLAIN ANALYZE have it as their last rule.
#[derive(Debug)]
pub(crate) struct NoteQuadraticJoins {
    /// Those of the query.
    conditions: Conditions,
}

impl NoteQuadraticJoins {
    pub(crate) fn new(query: &LogicalPlan) -> Self {
        let conditions = Conditions::of(query);
        Self { conditions }
    }
}

impl PhysicalOptimizerRule for NoteQuadraticJoins {
    fn name(&self) -> &'static str {
        "rmq_note_quadratic_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = RmqOptions::of(config);
        if !options.rewrite || options.range_joins == RangeJoinChoice::Never {
            return Ok(plan);
        }
        let noted = plan.transform_up(|plan| {
            if let Some(pairs) = aggregated_pairs(&plan)? {
                let note = format!(
                    "aggregates about {pairs} pairs of rows, which its join makes: a condition of equalities and one \
                     range, and aggregates of the columns of one side, need no pairs"
                );
                return Ok(Transformed::yes(Arc::new(NoteExec::new(plan, note)) as _));
            }
            Ok(match QuadraticJoin::from_plan(&plan, &self.conditions, &options) {
                Some(join) => {
                    let QuadraticJoin { which, reason, .. } = join;
                    let note = format!("compares every pair of rows{which}: {reason}");
                    Transformed::yes(Arc::new(NoteExec::new(plan, note)) as _)
                }
                None => Transformed::no(plan),
            })
        });
        noted.data()
    }
}
