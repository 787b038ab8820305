//! Candidate ranges as the ranges of positions that aggregates are computed over.

use rmq_engine::CandidateRanges;

use crate::common::ranges::Ranges;

impl From<CandidateRanges> for Ranges {
    fn from(candidates: CandidateRanges) -> Self {
        let (left, right) = candidates.into_inclusive();
        Self::new(left, right)
    }
}
