//! IN and NOT IN made of EXISTS, where there are neither counts nor mark joins.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, Result, ScalarValue, Spans};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::disjunction;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Subquery, lit, when};

use crate::optimizer::logical::common::outer_columns::{
    add_outer_columns, has_expression, to_outer,
};
use crate::optimizer::logical::common::plans::filtered;
use crate::optimizer::logical::condition_parts::check_repeats;
use crate::optimizer::rejection::{Match, reject};

/// `x [NOT] IN (…)` by up to three EXISTS. They serve whatever the subquery is made of.
pub(super) struct ByExists {
    /// A row equals x.
    equal: Exists,
    /// A row is NULL, if it may be.
    null: Option<Exists>,
    /// There is a row, if x may be NULL.
    any: Option<Exists>,
}

impl ByExists {
    pub(super) fn from_membership(membership: &InSubquery, outer: &DFSchema) -> Match<Self> {
        let InSubquery { expr: x, .. } = membership;
        let Subquery {
            subquery: plan,
            outer_ref_columns,
            ..
        } = &membership.subquery;
        check_repeats(x)?;
        let special = plan.exists(|node| {
            let is_limit = matches!(node, LogicalPlan::Limit(_));
            Ok(is_limit || has_expression(node, Expr::is_volatile)?)
        })?;
        if special {
            return reject("it has a LIMIT or a volatile function");
        }
        let Some((qualifier, field)) = plan.schema().iter().next() else {
            return reject("it has no column");
        };
        let value = Expr::Column(Column::from((qualifier, field)));
        let exists = |condition: Option<Expr>| -> Result<Exists> {
            let mut plan = plan.as_ref().clone();
            let mut outer_ref_columns = outer_ref_columns.clone();
            if let Some(condition) = condition {
                add_outer_columns(&mut outer_ref_columns, &condition)?;
                plan = filtered(plan, condition)?;
            }
            let subquery = Subquery {
                subquery: Arc::new(plan),
                outer_ref_columns,
                spans: Spans::new(),
            };
            let negated = false;
            Ok(Exists { subquery, negated })
        };
        let equal = equality(x, &value, outer)?;
        Ok(Self {
            equal: exists(Some(equal))?,
            null: field
                .is_nullable()
                .then(|| exists(Some(value.is_null())))
                .transpose()?,
            any: x.nullable(outer)?.then(|| exists(None)).transpose()?,
        })
    }

    /// FALSE where NOT IN is NULL:
    ///
    /// ```text
    ///   NOT EXISTS (… = x) AND NOT EXISTS (… IS NULL) AND (x IS NOT NULL OR NOT EXISTS (…))
    /// ```
    pub(super) fn not_in(self, membership: &InSubquery) -> Expr {
        let none = |exists: Exists| {
            let negated = true;
            Expr::Exists(Exists { negated, ..exists })
        };
        let mut all = none(self.equal);
        if let Some(null) = self.null {
            all = all.and(none(null));
        }
        if let Some(any) = self.any {
            let is_known = membership.expr.as_ref().clone().is_not_null();
            all = all.and(is_known.or(none(any)));
        }
        all
    }

    /// ```text
    ///   CASE WHEN EXISTS (… = x) THEN TRUE
    ///        WHEN EXISTS (… IS NULL) OR x IS NULL AND EXISTS (…) THEN NULL
    ///        ELSE FALSE END
    /// ```
    pub(super) fn three_values(self, membership: &InSubquery) -> Result<Expr> {
        let is_null = membership.expr.as_ref().clone().is_null();
        let any = self.any.map(|any| is_null.and(Expr::Exists(any)));
        let unknown = self.null.map(Expr::Exists).into_iter().chain(any);
        three_valued(
            Expr::Exists(self.equal),
            unknown.collect(),
            membership.negated,
        )
    }
}

/// IN, or NOT IN: whether a row is equal, and where that is unknown if none is.
pub(super) fn three_valued(equal: Expr, unknown: Vec<Expr>, negated: bool) -> Result<Expr> {
    let mut case = when(equal, lit(!negated));
    if let Some(unknown) = disjunction(unknown) {
        case = case.when(unknown, lit(ScalarValue::Boolean(None)));
    }
    case.otherwise(lit(negated))
}

/// `x = value`, with a constant on the right, where the optimizer puts it: DataFusion 55 takes `'a' = x AND x = 'a'`
/// for FALSE where it infers one of them.
pub(super) fn equality(x: &Expr, value: &Expr, outer: &DFSchema) -> Result<Expr> {
    let (x, is_constant) = (to_outer(x.clone(), outer)?, x.column_refs().is_empty());
    let value = value.clone();
    Ok(if is_constant {
        value.eq(x)
    } else {
        x.eq(value)
    })
}
