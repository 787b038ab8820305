//! The runs of a build side, as they were written or divided by hashes of the equality keys.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;

use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::routing::Routing;
use crate::exec::range_join::spill::run::BuildRun;

/// Runs that have all rows of a build side. The files are deleted with this.
#[derive(Debug)]
pub(crate) struct RunSet {
    runs: Vec<BuildRun>,
    /// The number of the first run, among the runs of all sets of the build side.
    first: usize,
    /// Which run rows with some equality keys are in, if it is one. The number of runs stands for none.
    pub(crate) routing: Option<Routing>,
    /// Which rows of each run have matched, by their position in the run; empty if the join returns nothing by that.
    matched: Vec<MatchedRows>,
}

impl RunSet {
    /// Runs that are numbered from `first` on. Their rows are marked if `marks_rows`.
    pub(crate) fn try_new(
        runs: Vec<BuildRun>,
        first: usize,
        routing: Option<Routing>,
        marks_rows: bool,
        memory: &Arc<RetainingPool>,
    ) -> Result<Self> {
        let mut matched = vec![];
        for run in runs.iter().filter(|_| marks_rows) {
            // Of what is retained for runs: other operators may have taken the rest.
            let memory = memory.reservation();
            memory.try_grow(MatchedRows::bytes(run.rows.rows))?;
            matched.push(MatchedRows::new(run.rows.rows, memory));
        }
        Ok(Self {
            runs,
            first,
            routing,
            matched,
        })
    }

    pub(crate) fn runs(&self) -> &[BuildRun] {
        &self.runs
    }

    /// The numbers of the runs.
    pub(crate) fn numbers(&self) -> Range<usize> {
        self.first..self.first + self.runs.len()
    }

    /// The run of this number.
    pub(crate) fn run(&self, number: usize) -> &BuildRun {
        &self.runs[number - self.first]
    }

    /// Which rows of the run of this number have matched, if the join returns build rows by that.
    pub(crate) fn matched(&self, number: usize) -> Option<&MatchedRows> {
        self.matched.get(number - self.first)
    }
}
