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
use crate::cuda::gpu::Gpu;
use crate::cuda::replicas::{build_on_each, run_on_one};
use crate::cuda::rmq::shape::Shape;
use crate::{
    ColumnChunks, EngineError, RangeJoinAnswer, RangeJoinColumn, RangeJoinIndex, RangeJoinInput,
    RangeJoinOutput, RangeJoinProbe, RangeJoinTimes,
};

/// A build side with a replica on each device.
pub struct CudaRangeJoin {
    key_bytes: usize,
    has_groups: bool,
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
        replicas.retain(|replica| replica.rows > 0);
        let columns = input.columns.iter().map(|column| RangeJoinColumn {
            values: without_values(&column.values),
            ..column.clone()
        });
        Ok(Self {
            key_bytes: input.keys.value_bytes(),
            has_groups: input.groups.is_some(),
            columns: columns.collect(),
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

/// Returns an empty column of the same width, which keeps no memory of the input.
fn without_values(column: &ColumnChunks) -> ColumnChunks {
    match column {
        ColumnChunks::W32(_) => ColumnChunks::W32(vec![]),
        ColumnChunks::W64(_) => ColumnChunks::W64(vec![]),
        ColumnChunks::W128(_) => ColumnChunks::W128(vec![]),
    }
}

impl RangeJoinIndex for CudaRangeJoin {
    fn rows(&self) -> usize {
        self.replicas.first().map_or(0, |one| one.rows as usize)
    }

    fn device_bytes(&self) -> usize {
        self.replicas.first().map_or(0, BuildReplica::bytes)
    }

    fn build_times(&self) -> RangeJoinTimes {
        let slowest =
            |times: RangeJoinTimes| times.upload + times.sort + times.gather + times.index;
        let times = self.replicas.iter().map(|one| one.times);
        times
            .max_by_key(|times| slowest(*times))
            .unwrap_or_default()
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
