//! Pairs of a probe row and a build position, on their way from candidates to the output of a join of rows.

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::common::Result;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::row_join::RowJoin;
use rmq_arrow::common::row_number::{row_number, row_numbers};
use rmq_engine::RowList;

/// The position of a row of NULLs. No build side has as many rows.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Some candidates of a probe batch.
pub(crate) struct CandidateSlice<S = u32> {
    pub(crate) rows: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// The searches that end in the slice, each with the end of its candidates there: by default, the probe rows whose
    /// last candidates these are.
    pub(crate) ended: Vec<(S, usize)>,
}

impl<S> Default for CandidateSlice<S> {
    fn default() -> Self {
        Self {
            rows: vec![],
            positions: vec![],
            ended: vec![],
        }
    }
}

impl CandidateSlice {
    /// Adds candidates of a probe row, without those that are `matched`.
    pub(crate) fn add(
        &mut self,
        row: u32,
        positions: impl Iterator<Item = u32>,
        matched: Option<&MatchedRows>,
    ) {
        match matched {
            Some(matched) => {
                let positions = positions.filter(|p| !matched.is_marked(*p as usize));
                self.positions.extend(positions);
            }
            None => self.positions.extend(positions),
        }
        self.rows.resize(self.positions.len(), row);
    }

    /// Adds the rows that were listed for probe rows from `first` on, without those that are `matched`.
    pub(crate) fn add_listed(
        &mut self,
        listed: &RowList,
        first: usize,
        matched: Option<&MatchedRows>,
    ) -> Result<()> {
        let RowList { positions, ends } = listed;
        let positions = row_numbers(positions.iter().copied())?;
        let parts = ends.iter().copied().chain([positions.len()]);
        let mut start = 0;
        self.rows.reserve(positions.len());
        self.positions.reserve(positions.len());
        for (i, end) in parts.enumerate() {
            // What is listed of a range that has not ended may be nothing, also after the last row of a batch.
            if i == ends.len() && start == end {
                break;
            }
            let row = row_number(first + i)?;
            self.add(row, positions[start..end].iter().copied(), matched);
            if i < ends.len() {
                self.ended.push((row, self.rows.len()));
            }
            start = end;
        }
        Ok(())
    }
}

impl<S> CandidateSlice<S> {
    /// Ends a search among the candidates of a probe row, which are the positions since the last end.
    pub(crate) fn end(&mut self, search: S, row: u32) {
        self.rows.resize(self.positions.len(), row);
        self.ended.push((search, self.positions.len()));
    }

    /// The candidates that meet a condition, all without one.
    pub(crate) fn meeting(
        self,
        condition: Option<&JoinFilter>,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<Self> {
        let Some(condition) = condition.filter(|_| !self.rows.is_empty()) else {
            return Ok(self);
        };
        let rows = UInt32Array::from(self.rows);
        let positions = UInt32Array::from(self.positions);
        let columns = &build.row_columns;
        let met = RowJoin::meet_residual(condition, batch, columns, (&rows, &positions))?;
        let mut kept = Self {
            ended: self.ended,
            ..Self::default()
        };
        let mut ended = kept.ended.iter_mut().peekable();
        for i in met.values().set_indices() {
            while let Some((_, end)) = ended.next_if(|(_, end)| *end <= i) {
                *end = kept.rows.len();
            }
            kept.rows.push(rows.value(i));
            kept.positions.push(positions.value(i));
        }
        ended.for_each(|(_, end)| *end = kept.rows.len());
        Ok(kept)
    }
}

/// Pairs that are to be returned.
#[derive(Default)]
pub(crate) struct PairBuffer {
    pub(crate) rows: Vec<u32>,
    pub(crate) positions: Vec<u32>,
}

impl PairBuffer {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a pair.
    pub(crate) fn add(&mut self, row: u32, position: u32) {
        self.rows.push(row);
        self.positions.push(position);
    }

    /// Adds pairs of one probe row.
    pub(crate) fn add_row(&mut self, row: u32, positions: &[u32]) {
        self.positions.extend_from_slice(positions);
        self.rows.resize(self.positions.len(), row);
    }

    /// Adds pairs.
    pub(crate) fn append(&mut self, rows: Vec<u32>, positions: Vec<u32>) {
        if self.is_empty() {
            *self = Self { rows, positions };
        } else {
            self.rows.extend(rows);
            self.positions.extend(positions);
        }
    }

    /// Marks their rows: those of the build side if it is marked which of them have matched, and those of the probe
    /// side in `matched`, unless that is empty.
    pub(crate) fn mark(&self, build: &BuildSide, matched: &mut [bool]) {
        if let Some(marks) = &build.matched {
            let positions = self.positions.iter().filter(|p| **p != NO_ROW);
            positions.for_each(|position| marks.mark(*position as usize));
        }
        if !matched.is_empty() {
            self.rows
                .iter()
                .for_each(|row| matched[*row as usize] = true);
        }
    }

    /// The probe rows and the positions, where NULL is a row of NULLs.
    pub(crate) fn into_arrays(self) -> (UInt32Array, UInt32Array) {
        let Self { rows, positions } = self;
        let positions = if positions.contains(&NO_ROW) {
            let positions = positions.into_iter();
            positions.map(|p| (p != NO_ROW).then_some(p)).collect()
        } else {
            UInt32Array::from(positions)
        };
        (UInt32Array::from(rows), positions)
    }

    /// Takes the first pairs, at most `limit`.
    pub(crate) fn take(&mut self, limit: usize) -> Self {
        if self.len() <= limit {
            return std::mem::take(self);
        }
        let rows = self.rows.split_off(limit);
        let positions = self.positions.split_off(limit);
        let rest = Self { rows, positions };
        std::mem::replace(self, rest)
    }
}
