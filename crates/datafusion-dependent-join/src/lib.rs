//! Correlated subqueries of any shape for [DataFusion](https://datafusion.apache.org).
//!
//! DataFusion makes a join of `(SELECT max(p.v) FROM p WHERE p.k = q.k)` by pulling conditions up. That fails for most
//! operators between the condition and the join, and for some, such as DISTINCT and window functions, the answer is
//! wrong. The rules of this crate have a plan for them, as in Neumann and Kemper, *Unnesting Arbitrary Queries* (BTW
//! 2015), and Neumann, *Improving Unnesting of Complex Queries* (BTW 2025). What DataFusion plans rightly by itself is
//! left to it.
//!
//! [`OuterColumnTypes`] gives outer columns the types that they will have. Then:
//!
//! 1. [`SubqueriesToDependentJoins`] and [`SubqueriesToLateralJoins`] make a *dependent join* of a subquery in an
//!    expression: a lateral join, of the kind LEFT for a value, semi, anti or mark for EXISTS, IN, ANY and ALL.
//! 2. [`UnnestDependentJoins`] pushes the distinct values of the outer columns, the *domain*, down the plan of the
//!    right side, until it is evaluated for all of them at once.
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
//! use datafusion_dependent_join::{add_to_analyzer, add_to_optimizer, single_row_udf};
//!
//! let mut builder = SessionStateBuilder::new_with_default_features();
//! add_to_analyzer(builder.analyzer().get_or_insert_default());
//! add_to_optimizer(builder.optimizer().get_or_insert_default());
//! builder.scalar_functions().get_or_insert_default().push(single_row_udf());
//! let state = builder.build();
//! ```

mod branches;
mod domain;
mod elimination;
mod evaluated_once;
mod exprs;
mod input;
mod last_aggregate;
mod lifting;
mod membership;
mod null_safe;
mod outer;
mod outer_types;
mod planned;
mod refusal;
mod rule;
mod simple;
mod single_row;
mod ties;
mod unions;
mod work_tables;

use std::sync::Arc;

use datafusion_optimizer::{Analyzer, AnalyzerRule, Optimizer, OptimizerRule};

pub use exprs::named;
pub use outer::{
    from_outer, has_outer_subquery, is_correlated, outer_of, refers_to_outer, subquery_of,
    subquery_of_mut,
};
pub use outer_types::OuterColumnTypes;
pub use rule::{
    SubqueriesToDependentJoins, SubqueriesToLateralJoins, UnnestDependentJoins, has_some_row,
};
pub use single_row::single_row_udf;

/// Adds the rules for plans as they are written, one before DataFusion coerces types, the other as the last. A second
/// call changes nothing.
pub fn add_to_analyzer(analyzer: &mut Analyzer) {
    let lift = SubqueriesToDependentJoins::default();
    let types = OuterColumnTypes;
    let ours = [lift.name(), types.name()];
    analyzer.rules.retain(|known| !ours.contains(&known.name()));
    let coercion = analyzer
        .rules
        .iter()
        .position(|known| known.name() == "type_coercion");
    analyzer
        .rules
        .insert(coercion.unwrap_or(0), Arc::new(types));
    analyzer.rules.push(Arc::new(lift));
}

/// Adds the optimizer's rules before all others: they must see DISTINCT ON before DataFusion makes aggregates of it,
/// and subqueries before DataFusion makes joins of them. A second call changes nothing.
pub fn add_to_optimizer(optimizer: &mut Optimizer) {
    let ours: [Arc<dyn OptimizerRule + Send + Sync>; 2] = [
        Arc::new(SubqueriesToLateralJoins::default()),
        Arc::new(UnnestDependentJoins::default()),
    ];
    let is_ours = |name: &str| ours.iter().any(|rule| rule.name() == name);
    optimizer.rules.retain(|known| !is_ours(known.name()));
    optimizer.rules.splice(0..0, ours);
}
