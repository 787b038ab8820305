//! A build side on the devices of an engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::answer_plan::AnswerPlan;
use super::batch::ProbeBatch;
use super::build::{BuildReplica, build};
use super::column::sum_bytes;
use super::outputs::AnswerShape;
use super::probe::answer;
use super::size::adding_bytes;
use crate::cuda::gpu::Gpu;
use crate::cuda::replicas::{build_on_each, run_on_one};
use crate::cuda::rmq::shape::Shape;
use crate::range_join::{check_columns, column_at};
use crate::{
    ColumnChunks, EngineError, RangeJoinAnswer, RangeJoinColumn, RangeJoinIndex, RangeJoinInput,
    RangeJoinOutput, RangeJoinProbe, RangeJoinTimes,
};

/// A build side with a replica on each device.
pub struct CudaRangeJoin {
    /// Number of rows of the input.
    input_rows: usize,
    key_bytes: usize,
    has_groups: bool,
    shape: Option<Shape>,
    /// What was built of each column, without its values.
    columns: Vec<RangeJoinColumn>,
    row_numbers: bool,
    /// None if no row is in a group.
    replicas: Vec<BuildReplica>,
}

impl CudaRangeJoin {
    /// Builds the build side on every device that has room for it.
    ///
    /// # Errors
    /// Those of [`Engine::build_range_join`](crate::Engine::build_range_join).
    pub fn build(
        gpus: &[Arc<Gpu>],
        input: &RangeJoinInput<'_>,
        threads: usize,
        shape: Option<Shape>,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        input.check()?;
        let gpus = if input.rows() == 0 { &[] } else { gpus };
        let mut replicas = build_on_each(gpus, "the build side of a range join", |gpu| {
            build(gpu, input, threads, shape, stop)
        })?;
        // If it was stopped, some devices may have been left out.
        if stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        replicas.retain(|replica| replica.sorted.rows > 0);
        Ok(Self {
            input_rows: input.rows(),
            key_bytes: input.keys.value_bytes(),
            has_groups: input.groups.is_some(),
            shape,
            columns: without_values(&input.columns).collect(),
            row_numbers: input.row_numbers,
            replicas,
        })
    }

    fn shape_of(&self, answer: RangeJoinAnswer) -> AnswerShape {
        let bytes_of = |column: usize| self.columns[column].values.value_bytes();
        let (value_bytes, valid) = match answer {
            RangeJoinAnswer::Matched => (0, true),
            RangeJoinAnswer::Count | RangeJoinAnswer::CountValid { .. } => (8, false),
            RangeJoinAnswer::Sum { column } => (sum_bytes(bytes_of(column)), true),
            RangeJoinAnswer::SumError { .. } => (8, true),
            RangeJoinAnswer::Extreme { column, .. } | RangeJoinAnswer::Value { column, .. } => {
                (bytes_of(column), true)
            }
            RangeJoinAnswer::Row { .. } => (4, true),
        };
        AnswerShape { value_bytes, valid }
    }

    /// Answers a checked batch on one device.
    fn answer_on(
        replica: &BuildReplica,
        key_bytes: usize,
        probe: &RangeJoinProbe<'_>,
        answers: &[RangeJoinAnswer],
        shapes: &[AnswerShape],
    ) -> Result<Vec<RangeJoinOutput>, EngineError> {
        let plan = AnswerPlan::new(replica, answers, shapes)?;
        let pinned = Some(&replica.gpu.pinned);
        let outputs = shapes
            .iter()
            .map(|shape| shape.allocate(probe.rows, pinned));
        let mut outputs: Vec<_> = outputs.collect();
        match key_bytes {
            4 => answer(&plan, &ProbeBatch::<u32>::try_new(probe)?, &mut outputs)?,
            8 => answer(&plan, &ProbeBatch::<u64>::try_new(probe)?, &mut outputs)?,
            _ => answer(&plan, &ProbeBatch::<u128>::try_new(probe)?, &mut outputs)?,
        }
        Ok(outputs)
    }
}

/// Returns what is built of columns, without their values, which are memory of the input.
fn without_values(columns: &[RangeJoinColumn]) -> impl Iterator<Item = RangeJoinColumn> {
    columns.iter().map(|column| RangeJoinColumn {
        values: match column.values {
            ColumnChunks::W32(_) => ColumnChunks::W32(vec![]),
            ColumnChunks::W64(_) => ColumnChunks::W64(vec![]),
            ColumnChunks::W128(_) => ColumnChunks::W128(vec![]),
        },
        ..*column
    })
}

impl RangeJoinIndex for CudaRangeJoin {
    fn rows(&self) -> usize {
        self.replicas
            .first()
            .map_or(0, |one| one.sorted.rows as usize)
    }

    fn device_bytes(&self) -> usize {
        self.replicas.first().map_or(0, BuildReplica::bytes)
    }

    fn added_bytes(&self) -> usize {
        self.replicas.first().map_or(0, BuildReplica::added_bytes)
    }

    fn build_times(&self) -> RangeJoinTimes {
        let slowest =
            |times: RangeJoinTimes| times.upload + times.sort + times.gather + times.index;
        let times = self.replicas.iter().map(|one| one.times);
        times
            .max_by_key(|times| slowest(*times))
            .unwrap_or_default()
    }

    fn with_columns(
        &self,
        kept: &[usize],
        added: &[RangeJoinColumn],
        row_numbers: bool,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Arc<dyn RangeJoinIndex>, EngineError> {
        check_columns(added, self.input_rows)?;
        let known = kept.iter().map(|i| column_at(&self.columns, *i).cloned());
        let known: Vec<_> = known.collect::<Result<_, _>>()?;
        let replicas = build_on_each(&self.replicas, "a value of a range join", |replica| {
            replica.with_columns(kept, added, row_numbers, threads, self.shape, stop)
        })?;
        // If it was stopped, some devices may have been left out.
        if stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        Ok(Arc::new(Self {
            columns: known.into_iter().chain(without_values(added)).collect(),
            row_numbers: self.row_numbers || row_numbers,
            replicas,
            ..*self
        }))
    }

    fn adding_bytes(&self, added: &[RangeJoinColumn]) -> usize {
        adding_bytes(added, self.input_rows, self.shape)
    }

    fn answer(
        &self,
        probe: &RangeJoinProbe<'_>,
        answers: &[RangeJoinAnswer],
    ) -> Result<Vec<RangeJoinOutput>, EngineError> {
        probe.check(self.key_bytes, self.has_groups)?;
        for answer in answers {
            answer.check(&self.columns, self.row_numbers)?;
        }
        let shapes: Vec<_> = answers.iter().map(|one| self.shape_of(*one)).collect();
        let mut outputs = vec![];
        if self.replicas.is_empty() || probe.rows == 0 {
            // No row matches: counts of 0, all else NULL.
            outputs.extend(shapes.iter().map(|shape| shape.allocate(probe.rows, None)));
            return Ok(outputs);
        }
        run_on_one(&self.replicas, "the build side", |replica| {
            outputs = Self::answer_on(replica, self.key_bytes, probe, answers, &shapes)?;
            Ok(())
        })?;
        Ok(outputs)
    }
}

impl fmt::Debug for CudaRangeJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.replicas.iter();
        let devices: Vec<_> = devices.map(|one| one.gpu.device.ordinal()).collect();
        f.debug_struct("CudaRangeJoin")
            .field("rows", &self.rows())
            .field("columns", &self.columns.len())
            .field("devices", &devices)
            .finish_non_exhaustive()
    }
}
