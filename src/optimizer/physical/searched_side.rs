//! Which side of a join is searched, and so sorted: the other one is the probe side.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::common::statistics::expected_rows;
use crate::optimizer::cost::decision::why_row_join_stays;
use crate::optimizer::cost::equal_rows::Sides;
use crate::optimizer::cost::range_rows::rows_in_range;
use crate::optimizer::physical::filtered_join::Join;
use crate::optimizer::physical::join_filter::RangeCondition;
use crate::optimizer::physical::no_range::why_no_range;
use crate::optimizer::physical::null_safe_filter::{Keys, take_null_safe_keys};
use datafusion_rmq_logical::common::options::RangeJoinChoice;
use datafusion_rmq_logical::conditions::null_safe_keys::null_safe_keys;
use datafusion_rmq_logical::conditions::rejection::{Match, reject};
use datafusion_rmq_logical::rules::common::max_rows::MAX_EAGERLY_SORTED_ROWS;
use rmq_arrow::sorted::groups::Groups;

/// With more than one probe row for this many build rows, their windows are not expected to prune the build side.
const MIN_ROWS_PER_PRUNING_WINDOW: usize = 64;

/// The join with one of its sides as the one that is searched: the better one, if either can be.
pub(super) fn choose_side<'a>(join: &'a Join<'a>, choice: RangeJoinChoice) -> Match<Oriented<'a>> {
    let with_probe = |side| {
        let oriented = Oriented::with_probe_side(join, side)?;
        oriented.check(choice)?;
        Ok(oriented)
    };
    match (with_probe(JoinSide::Left), with_probe(JoinSide::Right)) {
        (Ok(left), Ok(right)) => Ok(if right.is_better_than(&left) {
            right
        } else {
            left
        }),
        (Ok(only), Err(_)) | (Err(_), Ok(only)) => Ok(only),
        (Err(reason), Err(_)) => Err(reason),
    }
}

/// The same keys of a join in which a NULL equals another, as keys of which none is NULL.
fn with_nulls(on: Vec<Keys>, (probe, build): (&Schema, &Schema)) -> Match<Vec<Keys>> {
    let mut keys = vec![];
    for (ours, theirs) in on {
        let Some(found) = null_safe_keys((&ours, probe), (&theirs, build))? else {
            return reject(format!("{ours} and {theirs} can't be grouped by"));
        };
        keys.extend(found);
    }
    Ok(keys)
}

/// A join with a choice of the probe side. Left is the probe side.
pub(super) struct Oriented<'a> {
    pub(super) join: &'a Join<'a>,
    pub(super) probe: &'a Arc<dyn ExecutionPlan>,
    pub(super) build: &'a Arc<dyn ExecutionPlan>,
    pub(super) on: Vec<(PhysicalExprRef, PhysicalExprRef)>,
    /// How many of these, the first ones, are equality keys of the join that is replaced.
    joined_by: usize,
    pub(super) condition: RangeCondition,
    pub(super) join_type: JoinType,
    /// Whether the probe side is on the right of the join that is replaced.
    pub(super) is_flipped: bool,
}

impl<'a> Oriented<'a> {
    fn with_probe_side(join: &'a Join<'a>, probe_side: JoinSide) -> Match<Self> {
        let (left, right, on) = (join.left, join.right, join.on);
        let is_flipped = probe_side == JoinSide::Right;
        let (probe, build, on, filter, join_type) = if is_flipped {
            let flipped = on.iter().map(|(l, r)| (Arc::clone(r), Arc::clone(l)));
            let (filter, join_type) = (join.filter.swap(), join.join_type.swap());
            (right, left, flipped.collect(), filter, join_type)
        } else {
            let (filter, join_type) = (join.filter.as_ref().clone(), join.join_type);
            (left, right, on.to_vec(), filter, join_type)
        };
        let (probe_schema, build_schema) = (probe.schema(), build.schema());
        let schemas = (probe_schema.as_ref(), build_schema.as_ref());
        let mut on = if join.nulls_are_equal {
            with_nulls(on, schemas)?
        } else {
            on
        };
        let joined_by = on.len();
        let (keys, rest) = take_null_safe_keys(&filter, schemas)?;
        on.extend(keys);
        let found = rest.map(|rest| RangeCondition::find(&rest, &probe_schema, &build_schema));
        let Some(condition) = found.transpose()?.flatten() else {
            return reject(why_no_range(&filter, probe, build));
        };
        if let Some(reason) = condition.residual_rejection() {
            return reject(reason);
        }
        for (ours, theirs) in &on {
            let (a, b) = (
                ours.data_type(&probe_schema)?,
                theirs.data_type(&build_schema)?,
            );
            if a != b || !Groups::supports(&a) {
                return reject(format!("{ours} = {theirs} compares a {a} and a {b}"));
            }
        }
        if build.boundedness().is_unbounded() {
            return reject("the side that would be sorted has no end");
        }
        Ok(Self {
            join,
            probe,
            build,
            on,
            joined_by,
            condition,
            join_type,
            is_flipped,
        })
    }

    /// Rejects joins that DataFusion is expected to execute faster.
    fn check(&self, choice: RangeJoinChoice) -> Match<()> {
        if choice == RangeJoinChoice::Always {
            return Ok(());
        }
        let returns_pairs = !matches!(
            self.join_type,
            JoinType::LeftSemi
                | JoinType::RightSemi
                | JoinType::LeftAnti
                | JoinType::RightAnti
                | JoinType::LeftMark
                | JoinType::RightMark
        );
        let sides = Sides {
            on: &self.on[..self.joined_by],
            probe: self.probe,
            build: self.build,
        };
        let is_bounded_twice = self.condition.is_bounded_twice();
        let filtered = self.filtered_rows()?;
        match why_row_join_stays(&sides, is_bounded_twice, returns_pairs, filtered)? {
            Some(reason) => reject(reason),
            None => Ok(()),
        }
    }

    /// The further condition on pairs that no index answers.
    pub(super) fn filter(&self) -> Option<&JoinFilter> {
        match &self.condition.threshold {
            Some(threshold) => threshold.rest.as_ref(),
            None => self.condition.residual.as_ref(),
        }
    }

    /// About how many rows of each range are compared by a further condition, if there is one and something tells.
    pub(super) fn filtered_rows(&self) -> Result<Option<f64>> {
        if self.filter().is_none() || self.condition.threshold.is_some() {
            return Ok(None);
        }
        let sides = Sides {
            on: &self.on,
            probe: self.probe,
            build: self.build,
        };
        rows_in_range(&sides, &self.condition.key, &self.condition.bounds)
    }

    /// Whether this orientation of a join is better than the other one: first by the ends of the range and of the
    /// pairs, then if it streams the rows that it keeps, then if few windows prune what is searched, then by the size
    /// of what is sorted.
    fn is_better_than(&self, other: &Self) -> bool {
        let streams = |this: &Self| {
            use JoinType::{Full, Right, RightAnti, RightMark, RightSemi};
            !matches!(
                this.join_type,
                Right | Full | RightAnti | RightMark | RightSemi
            )
        };
        let rank = |this: &Self| {
            let condition = &this.condition;
            (
                condition.is_closed(),
                condition.is_bounded_twice(),
                streams(this),
            )
        };
        let rows = |this: &Self| expected_rows(this.build).unwrap_or(usize::MAX);
        if rank(self) != rank(other) {
            return rank(self) > rank(other);
        }
        if self.prunes() != other.prunes() {
            return self.prunes();
        }
        rows(self) < rows(other)
    }

    /// Whether the windows are so few that they are made out before a large build side is read, and may reach little of
    /// it. Where they reach all of it, sorting it takes about as long as a search for each of its rows.
    fn prunes(&self) -> bool {
        let rows = (expected_rows(self.probe), expected_rows(self.build));
        let (Some(windows), Some(rows)) = rows else {
            return false;
        };
        self.condition.is_closed()
            && rows > MAX_EAGERLY_SORTED_ROWS
            && windows <= rows / MIN_ROWS_PER_PRUNING_WINDOW
    }
}
