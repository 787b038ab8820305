//! Lateral joins of any shape for [DataFusion](datafusion).
//!
//! DataFusion makes a join of `q CROSS JOIN LATERAL (SELECT … FROM p WHERE p.k = q.k)` by pulling conditions up. That
//! fails for most operators between the condition and the join, and for some, such as DISTINCT and window functions,
//! the answer is wrong. [`UnnestDependentJoins`] has a plan for them, as in Neumann and Kemper, *Unnesting Arbitrary
//! Queries* (BTW 2015), and Neumann, *Improving Unnesting of Complex Queries* (BTW 2025): the distinct values of the
//! outer columns, the *domain*, are pushed down the plan of the subquery, until it is evaluated for all of them at
//! once. What DataFusion plans rightly by itself is left to it.
//!
//! ```text
//!   SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT DISTINCT p.v FROM p WHERE p.k < q.k) AS x
//!
//!   before                                   after
//!   Cross Join                               Projection: q.id, q.k, x.v
//!     q                                        Join: q.k IS NOT DISTINCT FROM d
//!     SubqueryAlias: x                           q
//!       Subquery:                                SubqueryAlias: x
//!         Distinct:                                Distinct:
//!           Projection: p.v                          Projection: p.v, d
//!             Filter: p.k < outer(q.k)                 Filter: p.k < d
//!               p                                        Cross Join
//!                                                          p
//!                                                          Distinct:
//!                                                            Projection: q.k AS d
//!                                                              q
//! ```
//!
//! ```
//! use datafusion::execution::SessionStateBuilder;
//! use datafusion_dependent_join::add_rules;
//!
//! let mut state = SessionStateBuilder::new_with_default_features();
//! let mut optimizer = state.optimizer().take().unwrap_or_default();
//! add_rules(&mut optimizer.rules);
//! let state = state.with_optimizer_rules(optimizer.rules).build();
//! ```

mod domain;
mod elimination;
mod null_safe;
mod outer;
mod refusal;
mod rule;

use std::sync::Arc;

use datafusion::optimizer::OptimizerRule;

pub use rule::UnnestDependentJoins;

/// Inserts the rule of this crate, once, before all others. It must see DISTINCT ON before DataFusion makes aggregates
/// of it, and subqueries before DataFusion makes joins of them.
pub fn add_rules(rules: &mut Vec<Arc<dyn OptimizerRule + Send + Sync>>) {
    let rule = UnnestDependentJoins;
    rules.retain(|known| known.name() != rule.name());
    rules.insert(0, Arc::new(rule));
}
