//! What the kernels compute for a batch, and where they put it.

use super::batch::ProbeBatch;
use super::build::BuildReplica;
use super::column::ExtremeReplica;
use super::group_ids::are_narrow;
use super::outputs::AnswerShape;
use crate::cuda::batch_buffers::Offsets;
use crate::cuda::key::CudaKey;
use crate::{EngineError, Extreme, RangeJoinAnswer, RangeRow};

/// The kernels' work for a batch: what is computed, and not where the results are put.
#[derive(Debug)]
pub struct AnswerPlan<'a> {
    pub replica: &'a BuildReplica,
    pub answers: &'a [RangeJoinAnswer],
    pub shapes: &'a [AnswerShape],
    /// Distinct extremes, each searched once.
    pub extremes: Vec<PlannedExtreme<'a>>,
    /// Distinct rows whose places are computed from ranges and extremes, each once.
    pub places: Vec<RangeRow>,
}

/// An extreme of a column.
#[derive(Debug)]
pub struct PlannedExtreme<'a> {
    column: usize,
    extreme: Extreme,
    pub replica: &'a ExtremeReplica,
    value_bytes: usize,
    /// Whether the value is requested.
    pub value: bool,
    /// Whether the row is needed.
    pub row: bool,
}

impl<'a> AnswerPlan<'a> {
    /// Plans checked answers, which have these shapes.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for an extreme without an index.
    pub fn new(
        replica: &'a BuildReplica,
        answers: &'a [RangeJoinAnswer],
        shapes: &'a [AnswerShape],
    ) -> Result<Self, EngineError> {
        let mut plan = Self {
            replica,
            answers,
            shapes,
            extremes: vec![],
            places: vec![],
        };
        for answer in answers {
            match *answer {
                RangeJoinAnswer::Extreme { column, extreme } => {
                    plan.extreme(column, extreme)?.value = true;
                }
                RangeJoinAnswer::Value { at, .. } | RangeJoinAnswer::Row { at } => plan.row(at)?,
                _ => {}
            }
        }
        Ok(plan)
    }

    /// Plans a row of ranges.
    fn row(&mut self, at: RangeRow) -> Result<(), EngineError> {
        if let RangeRow::Extreme { column, extreme }
        | RangeRow::FirstOrdered {
            column, extreme, ..
        } = at
        {
            self.extreme(column, extreme)?.row = true;
        }
        let has_place = matches!(at, RangeRow::FirstOfLast | RangeRow::FirstOrdered { .. });
        if has_place && !self.places.contains(&at) {
            self.places.push(at);
        }
        Ok(())
    }

    /// Whether group ids take 16 bits on the device.
    pub fn has_narrow_ids(&self) -> bool {
        are_narrow(self.replica.sorted.groups as usize)
    }

    fn extreme(
        &mut self,
        column: usize,
        extreme: Extreme,
    ) -> Result<&mut PlannedExtreme<'a>, EngineError> {
        if let Some(i) = self.find(column, extreme) {
            return Ok(&mut self.extremes[i]);
        }
        let of = &self.replica.columns[column];
        let replica = of.extreme(extreme).ok_or_else(|| {
            EngineError::Invalid(format!("value column {column} has no such index"))
        })?;
        self.extremes.push(PlannedExtreme {
            column,
            extreme,
            replica,
            value_bytes: of.value_bytes,
            value: false,
            row: false,
        });
        let last = self.extremes.len() - 1;
        Ok(&mut self.extremes[last])
    }

    /// Returns the index of a planned extreme.
    pub fn find(&self, column: usize, extreme: Extreme) -> Option<usize> {
        let mut extremes = self.extremes.iter();
        extremes.position(|one| (one.column, one.extreme) == (column, extreme))
    }
}

/// Where parts of a chunk are, in bytes from the start of its memory.
#[derive(Debug)]
pub struct ChunkLayout {
    /// Group ids, of 16 bits where they are narrow.
    pub ids: usize,
    /// Bits and validity of each column that bounds are made of.
    pub columns: Vec<(usize, usize)>,
    /// A word of 32 bits that is not 0 if a bound is moved beyond its type; `None` if none may be.
    pub overflow: Option<usize>,
    /// The end of what is copied to the device.
    pub inputs_end: usize,
    pub left: usize,
    pub right: usize,
    pub extremes: Vec<ExtremeOffsets>,
    pub places: Vec<usize>,
    /// Values and validity of each answer.
    pub answers: Vec<(usize, usize)>,
    pub end: usize,
}

/// Where the results of an extreme are.
#[derive(Debug, Clone, Copy)]
pub struct ExtremeOffsets {
    pub values: usize,
    pub rows: usize,
    pub valid: usize,
}

impl ChunkLayout {
    /// Lays out a chunk of `m` rows.
    pub fn new<K: CudaKey>(plan: &AnswerPlan<'_>, batch: &ProbeBatch<'_, K>, m: usize) -> Self {
        let mut offsets = Offsets::default();
        let bitmap = m.div_ceil(32) * 4;
        let id_bytes = if plan.has_narrow_ids() { 2 } else { 4 };
        let ids = batch.ids.as_ref().map_or(0, |_| m * id_bytes);
        let ids = offsets.add(ids);
        let columns = batch.columns.iter().map(|column| {
            let bits = offsets.add(m * size_of::<K>());
            let valid = offsets.add(if column.valid.is_some() { bitmap } else { 0 });
            (bits, valid)
        });
        let columns = columns.collect();
        let overflow = batch.may_overflow().then(|| offsets.add(size_of::<u32>()));
        let inputs_end = offsets.end;
        let (left, right) = (offsets.add(m * 4), offsets.add(m * 4));
        let extremes = plan.extremes.iter().map(|extreme| ExtremeOffsets {
            values: offsets.add(m * extreme.value_bytes),
            rows: offsets.add(if extreme.row { m * 8 } else { 0 }),
            valid: offsets.add(bitmap),
        });
        let extremes: Vec<_> = extremes.collect();
        let places = plan.places.iter().map(|_| offsets.add(m * 4)).collect();
        let answers = plan.answers.iter().zip(plan.shapes).map(|(answer, shape)| {
            if let RangeJoinAnswer::Extreme { column, extreme } = *answer
                && let Some(i) = plan.find(column, extreme)
            {
                return (extremes[i].values, extremes[i].valid);
            }
            (offsets.add(m * shape.value_bytes), offsets.add(bitmap))
        });
        Self {
            ids,
            columns,
            overflow,
            inputs_end,
            left,
            right,
            answers: answers.collect(),
            extremes,
            places,
            end: offsets.end,
        }
    }
}
