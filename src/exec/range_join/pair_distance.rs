//! The distance from a point of the probe row by which a join orders its pairs.

use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::range_join::row_threshold::renumbered;

/// The order of pairs by a distance.
#[derive(Debug, Clone)]
pub struct PairDistance {
    /// The point, over the probe side. Rows of the build side up to it come before it.
    pub point: PhysicalExprRef,
    /// The distance of a pair, as bytes that compare as it does and are as many for each.
    pub by: JoinFilter,
    /// Whether the distance grows from the point to the build row of a pair. NULL is the distance of those that come
    /// last.
    pub grows: JoinFilter,
}

impl PairDistance {
    /// Its expressions over pairs.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &JoinFilter> {
        [&self.by, &self.grows].into_iter()
    }

    /// The same distance with other numbers of the columns of the build side.
    pub(crate) fn renumbered(&self, number: impl Fn(usize) -> Result<usize>) -> Result<Self> {
        Ok(Self {
            point: PhysicalExprRef::clone(&self.point),
            by: renumbered(&self.by, &number)?,
            grows: renumbered(&self.grows, &number)?,
        })
    }
}
