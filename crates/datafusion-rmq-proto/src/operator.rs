//! The operators that this crate's codec knows.

use datafusion::physical_plan::ExecutionPlan;
use datafusion_rmq::parts::{NoteExec, OrderedRowsExec, ReplayExec, RowPositionsExec};
use datafusion_rmq::physical_plan::{
    CreateIndexExec, GroupStatisticsExec, PrepareIndexesExec, RangeJoinExec, RangeLookupExec,
    UniqueGroupsExec, WindowFrameExec,
};

use crate::carrier::CarriedExec;

/// An operator of datafusion-rmq or of this crate.
pub(crate) enum OurOperator<'a> {
    RangeJoin(&'a RangeJoinExec),
    RangeLookup(&'a RangeLookupExec),
    PrepareIndexes(&'a PrepareIndexesExec),
    WindowFrame(&'a WindowFrameExec),
    OrderedRows(&'a OrderedRowsExec),
    RowPositions(&'a RowPositionsExec),
    Carried(&'a CarriedExec),
    Note(&'a NoteExec),
    /// One that changes what the session keeps.
    Statement,
    /// One that shares memory with another operator.
    Sharing,
}

impl<'a> OurOperator<'a> {
    /// `None` for an operator of another library.
    pub(crate) fn of(plan: &'a dyn ExecutionPlan) -> Option<Self> {
        Some(if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
            Self::RangeJoin(join)
        } else if let Some(lookup) = plan.downcast_ref::<RangeLookupExec>() {
            Self::RangeLookup(lookup)
        } else if let Some(prepare) = plan.downcast_ref::<PrepareIndexesExec>() {
            Self::PrepareIndexes(prepare)
        } else if let Some(frames) = plan.downcast_ref::<WindowFrameExec>() {
            Self::WindowFrame(frames)
        } else if let Some(rows) = plan.downcast_ref::<OrderedRowsExec>() {
            Self::OrderedRows(rows)
        } else if let Some(rows) = plan.downcast_ref::<RowPositionsExec>() {
            Self::RowPositions(rows)
        } else if let Some(carried) = plan.downcast_ref::<CarriedExec>() {
            Self::Carried(carried)
        } else if let Some(note) = plan.downcast_ref::<NoteExec>() {
            Self::Note(note)
        } else if plan.is::<CreateIndexExec>() {
            Self::Statement
        } else if plan.is::<UniqueGroupsExec>()
            || plan.is::<ReplayExec>()
            || plan.is::<GroupStatisticsExec>()
        {
            Self::Sharing
        } else {
            return None;
        })
    }
}
