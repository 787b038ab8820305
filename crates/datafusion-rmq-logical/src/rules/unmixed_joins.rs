//! Rules of DataFusion that would take NULL for equal to NULL where a query doesn't, or the other way round.
//!
//! ```text
//!   SELECT … FROM a JOIN b ON a.x IS NOT DISTINCT FROM b.x CROSS JOIN c
//!   SELECT … FROM a JOIN b ON a.x IS NOT DISTINCT FROM b.x WHERE a.y = b.y
//! ```
//!
//! A join has one answer for all its keys. `eliminate_cross_join` takes adjacent inner joins apart, and puts them
//! together with that of the topmost one: rows with a NULL in `x` were lost. It makes a key of `y`, too, as
//! `extract_equijoin_predicate` does: rows with a NULL in it were kept. Unnested subqueries are such joins, with the
//! domain of their outer values.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion_common::{NullEquality, Result};
use datafusion_expr::{JoinType, LogicalPlan};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;

/// A rule of DataFusion that leaves plans as they are where it would mix keys of both kinds. If `rmq.rewrite` is false,
/// it does what it did.
#[derive(Debug)]
pub struct UnmixedJoins {
    rule: Arc<dyn OptimizerRule + Send + Sync>,
    mixes: fn(&LogicalPlan) -> Result<bool>,
}

impl UnmixedJoins {
    /// The rule itself, or kept from such plans if it is one that mixes keys.
    pub fn around(
        rule: Arc<dyn OptimizerRule + Send + Sync>,
    ) -> Arc<dyn OptimizerRule + Send + Sync> {
        let mixes = match rule.name() {
            "eliminate_cross_join" => has_mixed_joins,
            "extract_equijoin_predicate" => has_null_safe_keys,
            _ => return rule,
        };
        Arc::new(Self { rule, mixes })
    }
}

impl OptimizerRule for UnmixedJoins {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if RmqOptions::rewrites(&config.options()) && (self.mixes)(&plan)? {
            return Ok(Transformed::no(plan));
        }
        self.rule.rewrite(plan, config)
    }
}

/// Whether an inner join for which NULL equals NULL is an input of one for which it does not, or the other way round,
/// or below a filter.
fn has_mixed_joins(plan: &LogicalPlan) -> Result<bool> {
    let mut mixes = false;
    plan.apply_with_subqueries(|node| {
        let of_node = match node {
            // Its equalities become keys of the join below.
            LogicalPlan::Filter(_) => Some(NullEquality::NullEqualsNothing),
            _ => null_equality(node),
        };
        let mut of_inputs = node.inputs().into_iter().filter_map(null_equality);
        mixes |= of_inputs.any(|of_input| of_node.is_some_and(|of| of != of_input));
        Ok(if mixes {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(mixes)
}

/// Whether NULL equals NULL for the keys of an inner join.
fn null_equality(plan: &LogicalPlan) -> Option<NullEquality> {
    match plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => Some(join.null_equality),
        _ => None,
    }
}

/// Whether it is a join that has keys for which NULL equals NULL.
#[expect(clippy::unnecessary_wraps, reason = "as has_mixed_joins")]
fn has_null_safe_keys(plan: &LogicalPlan) -> Result<bool> {
    Ok(matches!(plan, LogicalPlan::Join(join)
        if !join.on.is_empty() && join.null_equality == NullEquality::NullEqualsNull))
}
