//! The position of each row in the order of the files that it is read from.
//!
//! Rows that are exchanged arrive in no order. Where it matters which of several rows comes first, they take their
//! position along, and are sorted by it where they arrive:
//!
//! ```text
//!   FilterExec        with_positions     FilterExec                   k, v, position
//!     DataSourceExec  ──────────────▶      RowPositionsExec           k, v, position
//!                                            DataSourceExec           k, v
//! ```
//!
//! An engine that divides a plan divides the scan below the operator, which knows the place of each file among all.
//! The number of a row in its file is Parquet's, whichever part of the file is read. DataFusion 55 does not write the
//! column that has it (`RowNumber`), so the operator adds it where it is executed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{
    ColumnStatistics, Result, Statistics, exec_err, internal_datafusion_err, internal_err, plan_err,
};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::functions::core;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;

use crate::exec::common::added_columns::properties_with;
use crate::exec::common::ordered_rows::OrderedRowsExec;
use crate::exec::common::plan_methods::{no_expressions, replace_input, row_for_row};
use datafusion_rmq_logical::common::inputs::inputs_of;

/// The name of the column of positions.
const POSITION: &str = "__rmq_position";

/// The bits of a position that have the number of a row in its file. Those above have the number of the file.
const ROW_BITS: u32 = 40;

/// The most files: a position is not negative.
const MAX_FILES: usize = 1 << (i64::BITS - 1 - ROW_BITS);

/// Why the rows of a plan can't have positions, if they can't.
pub(crate) fn why_no_positions(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    if let Some(rows) = plan.downcast_ref::<OrderedRowsExec>() {
        return why_no_positions(rows.hidden());
    }
    if plan.fetch().is_some() {
        return Some("these have a LIMIT".into());
    }
    if plan.is::<FilterExec>() || plan.is::<ProjectionExec>() {
        return plan.children().into_iter().find_map(why_no_positions);
    }
    let Some(files) = parquet_files(plan) else {
        let name = plan.name();
        return Some(format!(
            "these are not read from Parquet files but of {name}"
        ));
    };
    let paths: Vec<&str> = paths(files).collect();
    if paths.len() > MAX_FILES {
        return Some(format!("these are of more than {MAX_FILES} files"));
    }
    let distinct: HashSet<&&str> = paths.iter().collect();
    if distinct.len() < paths.len() {
        return Some("these are of a file that is read twice".into());
    }
    let is_numbered = matches!(numbered(plan), Ok(Some(_)));
    (!is_numbered).then(|| "these are of a scan that returns no numbers of rows".into())
}

/// The plan with the position of each row as its last column.
///
/// # Errors
/// A planning error if [they can't have any](why_no_positions).
pub(crate) fn with_positions(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(rows) = plan.downcast_ref::<OrderedRowsExec>() {
        return with_positions(rows.hidden());
    }
    if let Some(reason) = why_no_positions(plan) {
        return plan_err!("rows have no position: {reason}");
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let position = filter.input().schema().fields().len();
        let projection = filter.projection().as_ref();
        let projection = projection.map(|kept| kept.iter().copied().chain([position]).collect());
        let predicate = Arc::clone(filter.predicate());
        let filter = FilterExecBuilder::new(predicate, with_positions(filter.input())?)
            .with_default_selectivity(filter.default_selectivity())
            .with_batch_size(filter.batch_size())
            .apply_projection(projection)?;
        return Ok(Arc::new(filter.build()?));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let position = Column::new(POSITION, projection.input().schema().fields().len());
        let position = ProjectionExpr::new(Arc::new(position), POSITION);
        let exprs = projection.expr().iter().cloned().chain([position]);
        let input = with_positions(projection.input())?;
        return Ok(Arc::new(ProjectionExec::try_new(exprs, input)?));
    }
    let files = parquet_files(plan).into_iter().flat_map(paths);
    let files = files.map(str::to_string).collect();
    Ok(Arc::new(RowPositionsExec::try_new(
        Arc::clone(plan),
        files,
    )?))
}

/// The files of a scan of Parquet files.
fn parquet_files(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let files = scan.data_source().downcast_ref::<FileScanConfig>()?;
    files.file_source().is::<ParquetSource>().then_some(files)
}

/// The paths of files, in their order.
fn paths(files: &FileScanConfig) -> impl Iterator<Item = &str> {
    let files = files.file_groups.iter().flat_map(FileGroup::iter);
    files.map(|file| file.object_meta.location.as_ref())
}

/// Appends the position of each row to those of its input, a scan of Parquet files or of some of them.
#[derive(Debug)]
pub struct RowPositionsExec {
    input: Arc<dyn ExecutionPlan>,
    /// The paths of all files, in their order.
    files: Arc<[String]>,
    /// The input, with the path of the file and the number in it of each row. `None` over a placeholder of the scans
    /// of several tasks.
    numbered: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl RowPositionsExec {
    /// The positions of the rows of `input` among those of `files`.
    ///
    /// # Errors
    /// DataFusion's, if the scan can't be projected.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, files: Arc<[String]>) -> Result<Self> {
        let position = Field::new(POSITION, DataType::Int64, false);
        let metadata = input.schema().metadata().clone();
        Ok(Self {
            numbered: numbered(&input)?,
            properties: properties_with(input.as_ref(), [position], metadata)?,
            input,
            files,
        })
    }

    /// The paths of all files, in their order.
    #[must_use]
    pub fn files(&self) -> &Arc<[String]> {
        &self.files
    }
}

/// A scan of Parquet files with two more columns: the path of the file and the number in it of each row.
fn numbered(input: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let scan = parquet_files(input).and(input.downcast_ref::<DataSourceExec>());
    let Some(scan) = scan else {
        return Ok(None);
    };
    let schema = input.schema();
    let columns = schema.fields().iter().enumerate().map(|(index, field)| {
        let column = Arc::new(Column::new(field.name(), index));
        ProjectionExpr::new(column, field.name())
    });
    let call = |function: Arc<ScalarUDF>| -> Result<PhysicalExprRef> {
        let options = Arc::new(ConfigOptions::default());
        let call = ScalarFunctionExpr::try_new(function, vec![], &schema, options)?;
        Ok(Arc::new(call))
    };
    // One text for the rows of a batch.
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let file = CastExpr::new(call(core::input_file_name())?, text, None);
    let row = call(core::file_row_index())?;
    let added = [
        ProjectionExpr::new(Arc::new(file), "file"),
        ProjectionExpr::new(row, "row"),
    ];
    let columns = ProjectionExprs::new(columns.chain(added));
    let source = scan.data_source().try_swapping_with_projection(&columns)?;
    Ok(source.map(|source| Arc::new(DataSourceExec::new(source)) as _))
}

/// The batch with the position of each row in place of its file and its number there.
fn positioned(
    batch: &RecordBatch,
    files: &HashMap<String, i64>,
    plan: &PlanProperties,
) -> Result<RecordBatch> {
    let schema = plan.equivalence_properties().schema();
    let [columns @ .., file, row] = batch.columns() else {
        return internal_err!("a scan has no files and rows");
    };
    let (Some(file), Some(row)) = (
        file.as_dictionary_opt::<Int32Type>(),
        row.as_primitive_opt::<Int64Type>(),
    ) else {
        return internal_err!("a scan has files and rows of another type");
    };
    let Some(paths) = file.values().as_string_opt::<i32>() else {
        return internal_err!("the path of a file is no text");
    };
    let numbers = paths.iter().map(|path| {
        let number = path.and_then(|path| files.get(path)).copied();
        number.ok_or_else(|| internal_datafusion_err!("a scan reads the unknown file {path:?}"))
    });
    let numbers = numbers.collect::<Result<Vec<i64>>>()?;
    let positions = file.keys().iter().zip(row).map(|(file, row)| {
        let file = file.and_then(|file| numbers.get(usize::try_from(file).ok()?));
        let (Some(file), Some(row)) = (file, row) else {
            return internal_err!("a row has no file or no number in it");
        };
        if row >> ROW_BITS != 0 {
            return exec_err!("a file has more than 2^{ROW_BITS} rows");
        }
        Ok((file << ROW_BITS) | row)
    });
    let positions = positions.collect::<Result<Int64Array>>()?;
    let mut columns: Vec<ArrayRef> = columns.to_vec();
    columns.push(Arc::new(positions));
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

impl DisplayAs for RowPositionsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let files = self.files.len();
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RowPositionsExec: files={files}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "files={files}"),
        }
    }
}

impl ExecutionPlan for RowPositionsExec {
    fn name(&self) -> &'static str {
        "RowPositionsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    row_for_row!();

    no_expressions!();

    replace_input!(|rows, input| Self::try_new(input, Arc::clone(&rows.files))?);

    /// Nothing may come between the operator and its scan.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        config: &ConfigOptions,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(input) = self.input.repartitioned(target_partitions, config)? else {
            return Ok(None);
        };
        let files = Arc::clone(&self.files);
        Ok(Some(Arc::new(Self::try_new(input, files)?)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(numbered) = &self.numbered else {
            let input = self.input.name();
            return internal_err!("RowPositionsExec is above {input}, not a scan of Parquet files");
        };
        let files = (0..).zip(self.files.iter());
        let files: HashMap<_, _> = files.map(|(number, path)| (path.clone(), number)).collect();
        let properties = Arc::clone(&self.properties);
        let rows = numbered.execute(partition, context)?;
        let rows = rows.and_then(move |batch| {
            let batch = positioned(&batch, &files, &properties);
            async move { batch }
        });
        let rows = RecordBatchStreamAdapter::new(self.schema(), rows);
        Ok(Box::pin(rows))
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let [input] = inputs_of(self.name(), inputs.to_vec())?;
        let mut statistics = Statistics::clone(&input);
        let position = ColumnStatistics::new_unknown();
        statistics.column_statistics.push(position);
        Ok(Arc::new(statistics))
    }

    /// Those of the scan, which is executed in place of the input.
    fn metrics(&self) -> Option<MetricsSet> {
        self.numbered.as_ref()?.metrics()
    }
}
