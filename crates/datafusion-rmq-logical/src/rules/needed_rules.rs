//! Analyzer rules that run on plans that have what they look for.
//!
//! Each rule goes through all expressions of a plan and copies its nodes, and most plans have nothing for most rules.
//! So the expressions are looked at once for all of them.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_dependent_join::subquery_of;
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_optimizer::AnalyzerRule;

/// A rule, and whether it may change a plan with an expression.
type Needed = (fn(&Expr) -> bool, Arc<dyn AnalyzerRule + Send + Sync>);

/// Rules that run in this order, those without an expression that they look for left out.
pub struct NeededRules {
    rules: Vec<Needed>,
}

impl NeededRules {
    /// Makes one rule of these.
    #[must_use]
    pub fn new(rules: Vec<Needed>) -> Self {
        Self { rules }
    }

    /// Which of the rules may change a plan.
    fn found_in(&self, plan: &LogicalPlan) -> Result<Vec<bool>> {
        let mut found = vec![false; self.rules.len()];
        plan.apply_with_subqueries(|node| {
            node.apply_expressions(|expr| {
                expr.apply(|e| {
                    for (found, (is_sought, _)) in found.iter_mut().zip(&self.rules) {
                        *found = *found || is_sought(e);
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
        Ok(found)
    }
}

impl Debug for NeededRules {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let rules = self.rules.iter().map(|(_, rule)| rule);
        f.debug_list().entries(rules).finish()
    }
}

impl AnalyzerRule for NeededRules {
    fn name(&self) -> &'static str {
        "rmq_needed_rules"
    }

    fn analyze(&self, mut plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut found = self.found_in(&plan)?;
        for (i, (_, rule)) in self.rules.iter().enumerate() {
            if found[i] {
                plan = rule.analyze(plan, config)?;
                found = self.found_in(&plan)?;
            }
        }
        Ok(plan)
    }
}

/// Whether an expression is a subquery, or a column of the query around one.
#[must_use]
pub fn is_of_subquery(expr: &Expr) -> bool {
    subquery_of(expr).is_some() || matches!(expr, Expr::OuterReferenceColumn(..))
}
