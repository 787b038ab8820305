//! Tells whether two plans over tables in memory and Parquet files return the same rows in the same order: if what they
//! compute and the versions of what they scan are the same.
//!
//! Only operators and expressions that are known to repeat their results are compared. Any other, such as a join, a
//! volatile function or a filter that changes while the query runs, makes a plan incomparable.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Volatility;
use datafusion::object_store::path::Path;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{Partitioning, PhysicalExpr, PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;

use crate::exec::common::file_versions::file_versions;
use crate::exec::common::ordered_rows::OrderedRowsExec;
use crate::index::catalog::SentRows;
use crate::index::version::Version;

/// Plans that read more files, or parts of files, can't be compared: the version of each is requested for every query.
const MAX_FILES: usize = 256;

/// What a plan computes of what it scans.
#[derive(Debug, PartialEq)]
pub(crate) struct PlanKey {
    operators: Vec<Operator>,
    /// How the data of each scan are divided, which changes with a table.
    layouts: Vec<Layout>,
}

/// How the data of a scan are divided among its partitions.
#[derive(Debug, PartialEq)]
enum Layout {
    /// The number of batches of each partition: a union has those of several tables.
    Batches(Vec<usize>),
    Files(Vec<Vec<FilePart>>),
}

/// An operator, without its inputs, which follow it.
#[derive(Debug, PartialEq)]
enum Operator {
    Memory(Vec<usize>),
    Parquet(Box<ParquetScan>),
    Filter {
        predicate: PhysicalExprRef,
        columns: Option<Vec<usize>>,
    },
    Projection(Vec<PhysicalExprRef>),
    RoundRobin(usize),
    Gathered,
    InOrder,
    Union(usize),
}

/// Which rows and columns of its files a scan returns.
#[derive(Debug, PartialEq)]
struct ParquetScan {
    /// The types to which those of the files are cast.
    table_schema: SchemaRef,
    projection: Option<ProjectionExprs>,
    predicate: Option<PhysicalExprRef>,
    options: TableParquetOptions,
}

/// A file or a part of it, with the values of its partition columns.
#[derive(Debug, PartialEq)]
struct FilePart {
    path: Path,
    range: Option<FileRange>,
    values: Vec<ScalarValue>,
}

impl FilePart {
    /// `None` for a file if the table's provider may read only some of its rows.
    fn new(file: &PartitionedFile) -> Option<Self> {
        file.extensions.is_empty().then(|| Self {
            path: file.object_meta.location.clone(),
            range: file.range.clone(),
            values: file.partition_values.clone(),
        })
    }
}

/// What a plan scans: tables in memory, each with the columns that are read, and files.
#[derive(Debug, Default)]
pub(crate) struct Scans<'a> {
    memory: Vec<(&'a MemorySourceConfig, Vec<usize>)>,
    files: Vec<&'a FileScanConfig>,
}

impl PlanKey {
    /// The key of a plan, and what it scans. `None` if the plan can't be compared.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<(Self, Scans<'_>)> {
        let mut key = Self {
            operators: vec![],
            layouts: vec![],
        };
        let mut scans = Scans::default();
        key.add(plan, &mut scans)?;
        Some((key, scans))
    }

    /// Whether both plans compute the same, if their tables are the same.
    pub(crate) fn is_of_same_plan(&self, other: &Self) -> bool {
        self.operators == other.operators
    }

    /// Adds a plan and its inputs.
    fn add<'a>(&mut self, plan: &'a Arc<dyn ExecutionPlan>, scans: &mut Scans<'a>) -> Option<()> {
        if plan.fetch().is_some() {
            // Which rows these are depends on the partitions.
            return None;
        }
        if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
            return self.add_scan(scan, scans);
        }
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            self.operators.push(Operator::Filter {
                predicate: repeatable(filter.predicate())?,
                columns: filter.projection().as_ref().map(|columns| columns.to_vec()),
            });
        } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let exprs = projection.expr().iter();
            let exprs = exprs.map(|projected| repeatable(&projected.expr));
            let exprs = exprs.collect::<Option<_>>()?;
            self.operators.push(Operator::Projection(exprs));
        } else if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
            let Partitioning::RoundRobinBatch(partitions) = repartition.partitioning() else {
                return None;
            };
            self.operators.push(Operator::RoundRobin(*partitions));
        } else if plan.is::<CoalescePartitionsExec>() {
            self.operators.push(Operator::Gathered);
        } else if let Some(rows) = plan.downcast_ref::<OrderedRowsExec>() {
            self.operators.push(Operator::InOrder);
            return self.add(rows.hidden(), scans);
        } else if plan.is::<UnionExec>() {
            self.operators.push(Operator::Union(plan.children().len()));
        } else if !plan.is::<CooperativeExec>() {
            return None;
        }
        let mut children = plan.children().into_iter();
        children.try_for_each(|child| self.add(child, scans))
    }

    fn add_scan<'a>(&mut self, scan: &'a DataSourceExec, scans: &mut Scans<'a>) -> Option<()> {
        if let Some(memory) = scan.data_source().downcast_ref::<MemorySourceConfig>() {
            let all = || (0..memory.original_schema().fields().len()).collect();
            let columns: Vec<usize> = memory.projection().clone().unwrap_or_else(all);
            if columns.is_empty() {
                // Nothing would tell two tables from one another.
                return None;
            }
            let batches = memory.partitions().iter().map(Vec::len).collect();
            self.layouts.push(Layout::Batches(batches));
            self.operators.push(Operator::Memory(columns.clone()));
            scans.memory.push((memory, columns));
            return Some(());
        }
        let files = scan.data_source().downcast_ref::<FileScanConfig>()?;
        let num_files: usize = files.file_groups.iter().map(FileGroup::len).sum();
        if files.expr_adapter_factory.is_some() || num_files > MAX_FILES {
            return None;
        }
        let source: &ParquetSource = files.file_source().downcast_ref()?;
        let mut projected = source.projection().into_iter().flat_map(AsRef::as_ref);
        if !projected.all(|projected| is_repeatable(projected.expr.as_ref())) {
            return None;
        }
        let groups = files.file_groups.iter();
        let groups = groups.map(|group| group.iter().map(FilePart::new).collect());
        self.layouts
            .push(Layout::Files(groups.collect::<Option<_>>()?));
        let scan = ParquetScan {
            table_schema: Arc::clone(source.table_schema().table_schema()),
            projection: source.projection().cloned(),
            predicate: match source.filter() {
                Some(predicate) => Some(repeatable(&predicate)?),
                None => None,
            },
            options: source.table_parquet_options().clone(),
        };
        self.operators.push(Operator::Parquet(Box::new(scan)));
        scans.files.push(files);
        Some(())
    }
}

impl SentRows for PlanKey {
    fn is_same(&self, other: &dyn SentRows) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }

    fn is_of_same_plan(&self, other: &dyn SentRows) -> bool {
        let other = (other as &dyn Any).downcast_ref::<Self>();
        other.is_some_and(|other| Self::is_of_same_plan(self, other))
    }
}

impl<'a> Scans<'a> {
    /// What a plan scans; nothing if it can't be compared.
    pub(crate) fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Self {
        PlanKey::of(plan)
            .map(|(_, scans)| scans)
            .unwrap_or_default()
    }

    /// Whether files are scanned and nothing else.
    pub(crate) fn are_files(&self) -> bool {
        self.memory.is_empty() && !self.files.is_empty()
    }

    /// The version of what is scanned; `None` if it has no row that would tell it from others. `whose` tells in errors
    /// which scan it is: "of a range join".
    ///
    /// # Errors
    /// An execution error if a file is gone or has changed since the scan was planned.
    pub(crate) async fn version(
        &self,
        whose: &str,
        context: &TaskContext,
    ) -> Result<Option<Version>> {
        let mut files = vec![];
        for scan in &self.files {
            files.extend(file_versions(whose, scan, context).await?);
        }
        let batches = self.memory.iter().flat_map(|(memory, columns)| {
            let batches = memory.partitions().iter().flatten();
            batches.map(|batch| (batch, columns.as_slice()))
        });
        Ok(Version::from_scans(batches, files))
    }
}

/// The expression, if it has the same value for the same row each time.
fn repeatable(expr: &PhysicalExprRef) -> Option<PhysicalExprRef> {
    is_repeatable(expr.as_ref()).then(|| Arc::clone(expr))
}

/// Whether an expression has the same value for the same row each time.
pub(crate) fn is_repeatable(expr: &dyn PhysicalExpr) -> bool {
    let is_known = match expr.downcast_ref::<ScalarFunctionExpr>() {
        Some(call) => call.fun().signature().volatility == Volatility::Immutable,
        None => {
            expr.is::<BinaryExpr>()
                || expr.is::<CaseExpr>()
                || expr.is::<CastExpr>()
                || expr.is::<Column>()
                || expr.is::<InListExpr>()
                || expr.is::<IsNotNullExpr>()
                || expr.is::<IsNullExpr>()
                || expr.is::<LikeExpr>()
                || expr.is::<Literal>()
                || expr.is::<NegativeExpr>()
                || expr.is::<NotExpr>()
                || expr.is::<TryCastExpr>()
        }
    };
    is_known
        && expr
            .children()
            .iter()
            .all(|child| is_repeatable(child.as_ref()))
}
