//! The rows of an outer join without a match: an anti join.
//!
//! ```text
//!   SELECT q.id FROM q LEFT JOIN p ON p.sym = q.sym AND p.ts > q.ts WHERE p.ts IS NULL
//!
//!   Filter: p.ts IS NULL                            Projection: q.*, NULL AS sym, NULL AS ts
//!     Left Join: q.sym = p.sym, p.ts > q.ts           LeftAnti Join: q.sym = p.sym, p.ts > q.ts
//!       q                                               q
//!       p                                               p
//! ```
//!
//! The column must be NULL for no other row: it is NOT NULL, or the join's condition is not met where it is NULL. The
//! outer join would return each pair of rows that match before the filter drops them. Joins by equality alone stay.

use std::ops::Range;

use datafusion_common::metadata::FieldMetadata;
use datafusion_common::{Column, JoinType, NullEquality, Result, ScalarValue};
use datafusion_dependent_join::is_correlated;
use datafusion_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion_expr::{Expr, Join, LogicalPlan};
use datafusion_optimizer::OptimizerConfig;

use crate::rules::common::excludes_null::excludes_null;
use crate::rules::common::plain_sql_rule::plain_sql_rule;
use crate::rules::common::plans::{filtered, projected};

plain_sql_rule!(
    /// Rewrites an outer join of which only rows without a match are kept to an anti join. Does nothing if
    /// `rmq.rewrite` is false.
    ///
    /// It must run before filters are pushed down, which DataFusion does wrongly for some of outer joins, and again for
    /// those that have been pushed to one.
    OuterJoinToAntiJoin,
    "rmq_outer_join_to_anti_join",
    replace
);

fn replace(plan: &LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(None);
    };
    let LogicalPlan::Join(join) = filter.input.as_ref() else {
        return Ok(None);
    };
    let Some(outer) = OuterJoin::of(join) else {
        return Ok(None);
    };
    let conjuncts = split_conjunction_owned(filter.predicate.clone());
    let (unmatched, others): (Vec<_>, Vec<_>) =
        conjuncts.into_iter().partition(|e| outer.is_unmatched(e));
    if unmatched.is_empty() || is_correlated(&join.left)? || is_correlated(&join.right)? {
        return Ok(None);
    }
    let Some(rows) = outer.anti_join()? else {
        return Ok(None);
    };
    match conjunction(others) {
        Some(condition) => filtered(rows, condition).map(Some),
        None => Ok(Some(rows)),
    }
}

/// An outer join with a further condition than equality.
struct OuterJoin<'a> {
    join: &'a Join,
    condition: &'a Expr,
    /// The side whose columns are NULL without a match.
    other: &'a LogicalPlan,
    /// Its columns among those of the join.
    columns: Range<usize>,
    anti: JoinType,
}

impl<'a> OuterJoin<'a> {
    fn of(join: &'a Join) -> Option<Self> {
        let of_left = join.left.schema().fields().len();
        let (other, columns, anti) = match join.join_type {
            JoinType::Left => {
                let columns = of_left..join.schema.fields().len();
                (&join.right, columns, JoinType::LeftAnti)
            }
            JoinType::Right => (&join.left, 0..of_left, JoinType::RightAnti),
            _ => return None,
        };
        Some(Self {
            join,
            condition: join.filter.as_ref()?,
            other,
            columns,
            anti,
        })
    }

    /// Whether a condition is met by the rows without a match and no others.
    fn is_unmatched(&self, condition: &Expr) -> bool {
        let Expr::IsNull(operand) = condition else {
            return false;
        };
        let Expr::Column(column) = operand.as_ref() else {
            return false;
        };
        let index = self.join.schema.maybe_index_of_column(column);
        let Some(index) = index.filter(|index| self.columns.contains(index)) else {
            return false;
        };
        let field = self.other.schema().field(index - self.columns.start);
        let is_key =
            |(left, right): &(Expr, Expr)| left == operand.as_ref() || right == operand.as_ref();
        !field.is_nullable()
            || self.join.null_equality == NullEquality::NullEqualsNothing
                && self.join.on.iter().any(is_key)
            || split_conjunction(self.condition)
                .into_iter()
                .any(|e| excludes_null(e, operand))
    }

    /// The rows without a match, with the columns of the outer join. `None` if one of these has a type without a NULL.
    fn anti_join(&self) -> Result<Option<LogicalPlan>> {
        let Join {
            left,
            right,
            on,
            filter,
            join_constraint,
            null_equality,
            schema,
            ..
        } = self.join.clone();
        let mut columns = vec![];
        for (i, (qualifier, field)) in schema.iter().enumerate() {
            if !self.columns.contains(&i) {
                columns.push(Expr::Column(Column::new(qualifier.cloned(), field.name())));
                continue;
            }
            let Ok(null) = ScalarValue::try_from(field.data_type()) else {
                return Ok(None);
            };
            let metadata =
                (!field.metadata().is_empty()).then(|| FieldMetadata::from(field.metadata()));
            let null = Expr::Literal(null, metadata);
            columns.push(null.alias_qualified(qualifier.cloned(), field.name()));
        }
        let join = Join::try_new(
            left,
            right,
            on,
            filter,
            self.anti,
            join_constraint,
            null_equality,
            false,
        )?;
        projected(LogicalPlan::Join(join), columns).map(Some)
    }
}
