//! The domain below joins: on the side whose rows are kept, and on the other one where it needs it.

use std::sync::Arc;

use datafusion_common::{Column, JoinType, NullEquality, Result};
use datafusion_expr::utils::conjunction;
use datafusion_expr::{Expr, Join, JoinConstraint, LogicalPlan};
use datafusion_functions::core::expr_fn::coalesce;

use crate::elimination::Elimination;
use crate::exprs::columns;
use crate::null_safe::all_same;
use crate::outer::{Replacement, lateral};
use crate::refusal::{Found, refuse};

impl Elimination<'_> {
    pub(super) fn push_join(&self, plan: &LogicalPlan, join: &Join) -> Found<LogicalPlan> {
        if join.null_aware {
            return refuse("it has a NOT IN that is a join already");
        }
        if lateral(&join.right).is_some() {
            return self.push_outer_of_lateral(plan, join);
        }
        let right_needs = self.is_correlated(&join.right)?;
        let (on_left, on_right) = match join.join_type {
            JoinType::Inner => (self.is_correlated(&join.left)? || !right_needs, right_needs),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                (true, right_needs)
            }
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                (self.is_correlated(&join.left)?, true)
            }
            JoinType::Full => (true, true),
        };
        let left = self.pushed_if(on_left, &join.left)?;
        let right = self.pushed_if(on_right, &join.right)?;
        let of_left = if on_left {
            self.domain_of(&left)
        } else {
            vec![]
        };
        let of_right = if on_right {
            self.domain_of(&right)
        } else {
            vec![]
        };
        let filter = match (&join.filter, on_left) {
            (Some(filter), true) => Some(self.replaced_one(plan, &left, filter.clone())?),
            (Some(filter), false) => Some(self.replaced_one(plan, &right, filter.clone())?),
            (None, _) => None,
        };
        // None if one of them is empty.
        let same = all_same((&left, &of_left), (&right, &of_right))?;
        let lengths = [
            join.left.schema().fields().len(),
            join.right.schema().fields().len(),
        ];
        let has = [&left, &right].map(|side| side.schema().fields().len());
        let joined = join_of(left, right, join, filter.into_iter().chain(same))?;

        let all = joined.schema().columns();
        let (l, r): (&[Column], &[Column]) = match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti => (&all, &[]),
            JoinType::RightSemi | JoinType::RightAnti => (&[], &all),
            JoinType::RightMark => (&[], &all),
            _ => all.split_at(has[0].min(all.len())),
        };
        let kept = |side: &[Column], length: usize, has: usize| {
            let mut kept = side.to_vec();
            if kept.len() >= has {
                // A column that marks matches may follow.
                kept.drain(length..has);
            }
            kept
        };
        let l = kept(l, lengths[0], has[0]);
        let r = kept(r, lengths[1], has[1]);
        let exprs = columns([l, r].concat());
        let domain = match (join.join_type, on_left) {
            (JoinType::Full, _) => {
                let either = columns(of_left).into_iter().zip(columns(of_right));
                either.map(|(l, r)| coalesce(vec![l, r])).collect()
            }
            (JoinType::Right | JoinType::RightSemi | JoinType::RightAnti, _)
            | (JoinType::RightMark, _)
            | (_, false) => columns(of_right),
            (_, true) => columns(of_left),
        };
        self.with_names_and(joined, exprs, domain, &join.schema)
    }

    /// A lateral join within the subquery: its left side gets the outer columns, and its right side refers to these.
    fn push_outer_of_lateral(&self, plan: &LogicalPlan, join: &Join) -> Found<LogicalPlan> {
        let left = self.push(&join.left)?;
        let domain = self.domain_of(&left);
        let replacement = Replacement {
            outer: &columns(self.outer.clone()),
            by: &domain,
        };
        let right = replacement.in_plan(&join.right, &[Arc::clone(join.left.schema())])?;
        let filter = join.filter.clone();
        let filter = filter
            .map(|filter| self.replaced_one(plan, &left, filter))
            .transpose()?;
        let length = join.left.schema().fields().len();
        let joined = join_of(left, right, join, filter)?;
        let mut all = joined.schema().columns();
        all.drain(length..length + domain.len());
        self.with_names(joined, columns(all), domain, &join.schema)
    }

    fn pushed_if(&self, is_pushed: bool, plan: &LogicalPlan) -> Found<LogicalPlan> {
        match is_pushed {
            true => self.push(plan),
            false => Ok(plan.clone()),
        }
    }

    /// The domain with the rows of a plan into which it was pushed, where there are any.
    pub(super) fn left_join(
        &self,
        domain: LogicalPlan,
        plan: LogicalPlan,
        of_plan: &[Column],
    ) -> Found<LogicalPlan> {
        let of_domain = self.domain_of(&domain);
        let same = all_same((&domain, &of_domain), (&plan, of_plan))?;
        let join = Join::try_new(
            Arc::new(domain),
            Arc::new(plan),
            vec![],
            same,
            JoinType::Left,
            JoinConstraint::On,
            NullEquality::NullEqualsNothing,
            false,
        )?;
        Ok(LogicalPlan::Join(join))
    }
}

/// A join as `join` with other inputs and these conditions in place of its own one.
pub(crate) fn join_of(
    left: LogicalPlan,
    right: LogicalPlan,
    join: &Join,
    conditions: impl IntoIterator<Item = Expr>,
) -> Result<LogicalPlan> {
    let join = Join::try_new(
        Arc::new(left),
        Arc::new(right),
        join.on.clone(),
        conjunction(conditions),
        join.join_type,
        JoinConstraint::On,
        join.null_equality,
        false,
    )?;
    Ok(LogicalPlan::Join(join))
}
