//! Tells whether two plans over tables in memory, Parquet files and tables that state their versions return the same
//! rows in the same order, whatever columns they read: if what they compute and the versions of what they scan are the
//! same.
//!
//! Only operators and expressions that are known to repeat their results are compared. Any other, such as a join, a
//! volatile function or a filter that changes while the query runs, makes a plan incomparable.

use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, Volatility};
use datafusion::object_store::path::Path;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{Partitioning, PhysicalExpr, PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::common::file_versions::{file_versions, planned_file_versions};
use crate::exec::common::ordered_rows::OrderedRowsExec;
use crate::exec::common::versioned_scan::{ScanRequest, VersionedScanExec};
use crate::kept::table_version::TableVersion;
use crate::kept::version::{FileVersion, Version, added};

/// Plans that read more files, or parts of files, can't be compared: the version of each is requested for every query.
const MAX_FILES: usize = 256;

/// Which rows a plan returns of what it scans, and in which order. Not which columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlanKey {
    pub(super) operators: Vec<Operator>,
    /// How the data of each scan are divided, which changes with a table.
    pub(super) layouts: Vec<Layout>,
}

/// The data of a scan: one list for each partition, or one list if only their order counts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Layout {
    /// The number of batches: a union has those of several tables.
    Batches(Vec<usize>),
    Files(Vec<Vec<FilePart>>),
}

impl Layout {
    /// The number of batches, or of files and parts.
    fn len(&self) -> usize {
        match self {
            Self::Batches(partitions) => partitions.iter().sum(),
            Self::Files(groups) => groups.iter().map(Vec::len).sum(),
        }
    }

    /// The same data in one list.
    fn in_one_list(self) -> Self {
        match self {
            Self::Batches(partitions) => Self::Batches(vec![partitions.iter().sum()]),
            Self::Files(groups) => {
                let mut parts: Vec<FilePart> = vec![];
                for part in groups.into_iter().flatten() {
                    match parts.last_mut() {
                        Some(last) if last.is_followed_by(&part) => last.extend_to(&part),
                        _ => parts.push(part),
                    }
                }
                let parts = parts.into_iter().map(FilePart::normalized);
                Self::Files(vec![parts.collect()])
            }
        }
    }
}

/// An operator, without its inputs, which follow it. Expressions are over the columns of the scan or union below.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operator {
    Memory,
    Parquet(Box<ParquetScan>),
    Stated(StatedScan),
    Filter(PhysicalExprRef),
    RoundRobin(usize),
    Gathered,
    /// The columns of each input.
    Union(Vec<Vec<PhysicalExprRef>>),
}

/// Which rows of its files a scan returns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ParquetScan {
    /// The types to which those of the files are cast.
    pub(super) table_schema: SchemaRef,
    pub(super) predicate: Option<PhysicalExprRef>,
    pub(super) options: TableParquetOptions,
    pub(super) batch_rows: Option<usize>,
}

/// Which rows of a table that states its version a scan returns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StatedScan {
    table_schema: SchemaRef,
    filters: Vec<Expr>,
    partitions: (usize, usize),
}

/// A file or a part of it, with the values of its partition columns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FilePart {
    pub(super) path: Path,
    pub(super) range: Option<FileRange>,
    pub(super) values: Vec<ScalarValue>,
    /// Bytes of the whole file.
    pub(super) file_bytes: i64,
}

impl FilePart {
    /// `None` for a file if the table's provider may read only some of its rows.
    fn new(file: &PartitionedFile) -> Option<Self> {
        let part = Self {
            path: file.object_meta.location.clone(),
            range: file.range.clone(),
            values: file.partition_values.clone(),
            file_bytes: i64::try_from(file.object_meta.size).ok()?,
        };
        file.extensions.is_empty().then(|| part.normalized())
    }

    /// The same part. The whole file has no range.
    fn normalized(mut self) -> Self {
        let all = (0, self.file_bytes);
        self.range.take_if(|range| (range.start, range.end) == all);
        self
    }

    /// Whether `next` is the part of the same file that begins where this one ends.
    fn is_followed_by(&self, next: &Self) -> bool {
        let (range, next_range) = (self.range.as_ref(), next.range.as_ref());
        let meet = range.zip(next_range).is_some_and(|(a, b)| a.end == b.start);
        meet && self.path == next.path && self.values == next.values
    }

    /// Both parts of a file.
    fn extend_to(&mut self, next: &Self) {
        if let Some((range, next)) = self.range.as_mut().zip(next.range.as_ref()) {
            range.end = next.end;
        }
    }
}

/// A plan as operators over scans.
#[derive(Debug)]
pub(crate) struct ScanPlan<'a> {
    pub(crate) key: PlanKey,
    /// Whether the rows come in the same order each time: partition after partition, and as they come within each.
    pub(crate) is_in_order: bool,
    /// The columns of the plan, as expressions over those of the scan or union below.
    columns: Vec<PhysicalExprRef>,
    memory: Vec<&'a MemorySourceConfig>,
    /// The columns of each table in memory that are read.
    read: Vec<Vec<usize>>,
    files: Vec<&'a FileScanConfig>,
    stated: Vec<&'a TableVersion>,
}

impl<'a> ScanPlan<'a> {
    /// `None` if the plan can't be compared with others.
    pub(crate) fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let scanned = Self::of_any_files(plan)?;
        let files = |scan: &&FileScanConfig| scan.file_groups.iter().map(FileGroup::len).sum();
        let mut files = scanned.files.iter().map(files);
        files
            .all(|files: usize| files <= MAX_FILES)
            .then_some(scanned)
    }

    /// The same of a plan that may read more files than those that are compared for every query.
    pub(crate) fn of_any_files(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let mut scanned = Self {
            key: PlanKey {
                operators: vec![],
                layouts: vec![],
            },
            is_in_order: true,
            columns: vec![],
            memory: vec![],
            read: vec![],
            files: vec![],
            stated: vec![],
        };
        scanned.columns = scanned.add(plan)?;
        let key = &mut scanned.key;
        if !key.deals_out_batches() {
            let layouts = std::mem::take(&mut key.layouts).into_iter();
            key.layouts = layouts.map(Layout::in_one_list).collect();
        }
        Some(scanned)
    }

    /// The rows and columns of a plan; `None` if they may come in another order or be others the next time.
    pub(crate) fn repeated(plan: &Arc<dyn ExecutionPlan>) -> Option<RepeatedPlan> {
        let scanned = ScanPlan::of(plan).filter(|scanned| scanned.is_in_order)?;
        Some(RepeatedPlan {
            key: scanned.key,
            columns: scanned.columns,
        })
    }

    /// Whether these are the rows of one table, so that a plan may read some of its pieces alone
    /// ([`over_pieces`](crate::exec::common::pieces::over_pieces)).
    pub(crate) fn has_pieces(&self) -> bool {
        self.memory.len() + self.files.len() + self.stated.len() == 1
    }

    /// The number of rows, if a table in memory is scanned and nothing else.
    pub(crate) fn rows_in_memory(&self) -> Option<usize> {
        let [memory] = self.memory.as_slice() else {
            return None;
        };
        let batches = memory.partitions().iter().flatten();
        let rows = || batches.map(RecordBatch::num_rows).sum();
        self.has_pieces().then(rows)
    }

    /// Whether rows of later batches may come before those of earlier ones.
    pub(crate) fn deals_out_batches(&self) -> bool {
        self.key.deals_out_batches()
    }

    /// Whether files are scanned and nothing else.
    pub(crate) fn reads_files(&self) -> bool {
        self.memory.is_empty() && self.stated.is_empty() && !self.files.is_empty()
    }

    /// The files that are scanned, if these are of one table and nothing else is scanned.
    pub(crate) fn only_files(&self) -> Option<&'a FileScanConfig> {
        match self.files.as_slice() {
            [files] if self.reads_files() => Some(files),
            _ => None,
        }
    }

    /// An expression over the columns of the plan as one over those of its scan; `None` if it may have another value
    /// for the same row the next time.
    pub(crate) fn over_scan(&self, expr: &PhysicalExprRef) -> Option<PhysicalExprRef> {
        over(&self.columns, &repeatable(expr)?)
    }

    /// The version of the rows and of the columns that these expressions over the scan read, with what the stores told
    /// of files when they were listed. `None` if there is no row that would tell it from others.
    pub(crate) fn planned_version(&self, expressions: &[PhysicalExprRef]) -> Option<Version> {
        let filters = self.key.operators.iter().filter_map(|op| match op {
            Operator::Filter(predicate) => Some(predicate),
            _ => None,
        });
        let expressions = expressions.iter().chain(filters);
        let files = self.files.iter().copied().flat_map(planned_file_versions);
        let stated = self.stated.iter().copied().cloned().collect();
        self.version_with(expressions, |_| true, files.collect(), stated)
    }

    /// The planned version with the files as they are now. `whose` tells in errors which scan it is: "of a range join".
    ///
    /// # Errors
    /// As [`Self::check_files`].
    pub(crate) async fn present_version(
        &self,
        planned: Version,
        whose: &str,
        context: &TaskContext,
    ) -> Result<Version> {
        let requested = SystemTime::now();
        let files = self.check_files(whose, context).await?;
        Ok(planned.with_files(files, requested))
    }

    /// Returns the present versions of the files.
    ///
    /// # Errors
    /// An execution error if a file is gone or has changed since the scan was planned.
    pub(crate) async fn check_files(
        &self,
        whose: &str,
        context: &TaskContext,
    ) -> Result<Vec<FileVersion>> {
        let mut files = vec![];
        for scan in &self.files {
            files.extend(file_versions(whose, scan, context).await?);
        }
        Ok(files)
    }

    /// The version of the columns in memory that this expression over the scan reads, in the batches whose numbers
    /// `is_read` selects; `None` if it reads none.
    pub(crate) fn version_of(
        &self,
        expr: &PhysicalExprRef,
        is_read: impl Fn(usize) -> bool,
    ) -> Option<Version> {
        self.version_with([expr].into_iter(), is_read, vec![], vec![])
    }

    fn version_with<'e>(
        &self,
        expressions: impl Iterator<Item = &'e PhysicalExprRef>,
        is_read: impl Fn(usize) -> bool,
        files: Vec<FileVersion>,
        stated: Vec<TableVersion>,
    ) -> Option<Version> {
        // Above a union, columns are not those of one table.
        let is_alone = self.memory.len() == 1 && self.files.is_empty() && self.stated.is_empty();
        let read: Vec<Vec<usize>> = if is_alone {
            let columns = expressions.flat_map(collect_columns);
            let mut columns: Vec<usize> = columns.map(|column| column.index()).collect();
            columns.sort_unstable();
            columns.dedup();
            vec![columns]
        } else {
            self.read.clone()
        };
        let batches = self.memory.iter().zip(&read).flat_map(|(memory, columns)| {
            let batches = memory.partitions().iter().flatten();
            batches.map(|batch| (batch, columns.as_slice()))
        });
        let batches = batches.enumerate().filter(|(number, _)| is_read(*number));
        Version::from_scans(batches.map(|(_, batch)| batch), files, stated)
    }

    /// Adds a plan and its inputs. Returns its columns over the scan or union below.
    fn add(&mut self, plan: &'a Arc<dyn ExecutionPlan>) -> Option<Vec<PhysicalExprRef>> {
        if plan.fetch().is_some() {
            // Which rows these are depends on the partitions.
            return None;
        }
        if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
            return self.add_scan(scan);
        }
        if let Some(rows) = plan.downcast_ref::<OrderedRowsExec>() {
            return self.add(rows.hidden());
        }
        if let Some(scan) = plan.downcast_ref::<VersionedScanExec>() {
            return Some(self.add_stated(scan));
        }
        if plan.is::<UnionExec>() {
            let inputs = plan.children().into_iter();
            let inputs: Vec<_> = inputs.map(|input| self.add(input)).collect::<Option<_>>()?;
            self.key.operators.push(Operator::Union(inputs));
            let fields = plan.schema();
            let fields = fields.fields().iter().enumerate();
            let columns = fields.map(|(i, field)| Arc::new(Column::new(field.name(), i)) as _);
            return Some(columns.collect());
        }
        let children = plan.children();
        let [input] = children.as_slice() else {
            return None;
        };
        let columns = self.add(input)?;
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            let predicate = over(&columns, &repeatable(filter.predicate())?)?;
            self.key.operators.push(Operator::Filter(predicate));
            return Some(match filter.projection().as_ref() {
                Some(kept) => {
                    let kept = kept.iter().map(|i| columns.get(*i).cloned());
                    kept.collect::<Option<_>>()?
                }
                None => columns,
            });
        }
        if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let exprs = projection.expr().iter();
            let exprs = exprs.map(|projected| over(&columns, &repeatable(&projected.expr)?));
            return exprs.collect();
        }
        if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
            let Partitioning::RoundRobinBatch(partitions) = repartition.partitioning() else {
                return None;
            };
            // The batches of several partitions come in any order.
            self.is_in_order &= input.output_partitioning().partition_count() == 1;
            self.key.operators.push(Operator::RoundRobin(*partitions));
        } else if plan.is::<CoalescePartitionsExec>() {
            self.is_in_order &= input.output_partitioning().partition_count() == 1;
            self.key.operators.push(Operator::Gathered);
        } else if !plan.is::<CooperativeExec>() {
            return None;
        }
        Some(columns)
    }

    fn add_stated(&mut self, scan: &'a VersionedScanExec) -> Vec<PhysicalExprRef> {
        let ScanRequest {
            schema,
            columns,
            filters,
            partitions,
        } = &scan.request;
        self.key.operators.push(Operator::Stated(StatedScan {
            table_schema: Arc::clone(schema),
            filters: filters.clone(),
            partitions: *partitions,
        }));
        self.is_in_order &= scan.is_in_order;
        self.stated.push(&scan.stated.version);
        let schema = scan.schema();
        let columns = columns.iter().zip(schema.fields());
        columns
            .map(|(i, field)| Arc::new(Column::new(field.name(), *i)) as _)
            .collect()
    }

    fn add_scan(&mut self, scan: &'a DataSourceExec) -> Option<Vec<PhysicalExprRef>> {
        if let Some(memory) = scan.data_source().downcast_ref::<MemorySourceConfig>() {
            let schema = memory.original_schema();
            let all = || (0..schema.fields().len()).collect();
            let columns: Vec<usize> = memory.projection().clone().unwrap_or_else(all);
            if columns.is_empty() {
                // Nothing would tell two tables from one another.
                return None;
            }
            let batches = memory.partitions().iter().map(Vec::len).collect();
            self.key.layouts.push(Layout::Batches(batches));
            self.key.operators.push(Operator::Memory);
            let of_table = |i: &usize| Arc::new(Column::new(schema.field(*i).name(), *i)) as _;
            let over_table = columns.iter().map(of_table).collect();
            self.memory.push(memory);
            self.read.push(columns);
            return Some(over_table);
        }
        let files = scan.data_source().downcast_ref::<FileScanConfig>()?;
        if files.expr_adapter_factory.is_some() {
            return None;
        }
        let source: &ParquetSource = files.file_source().downcast_ref()?;
        let groups = files.file_groups.iter();
        let groups = groups.map(|group| group.iter().map(FilePart::new).collect());
        let layout = Layout::Files(groups.collect::<Option<_>>()?);
        let table_schema = source.table_schema().table_schema();
        let columns = match source.projection() {
            Some(projection) => {
                let exprs = projection.iter();
                exprs.map(|projected| repeatable(&projected.expr)).collect()
            }
            None => {
                let fields = table_schema.fields().iter().enumerate();
                let columns = fields.map(|(i, field)| Arc::new(Column::new(field.name(), i)) as _);
                Some(columns.collect())
            }
        };
        let operator = ParquetScan {
            table_schema: Arc::clone(table_schema),
            predicate: match source.filter() {
                Some(predicate) => Some(repeatable(&predicate)?),
                None => None,
            },
            options: source.table_parquet_options().clone(),
            batch_rows: files.batch_size,
        };
        self.key.layouts.push(layout);
        self.key
            .operators
            .push(Operator::Parquet(Box::new(operator)));
        // Partitions take files from one another.
        self.is_in_order &= files.preserve_order || files.file_groups.len() < 2;
        self.files.push(files);
        columns
    }
}

/// The rows and columns of a plan that returns the same each time.
#[derive(Debug, PartialEq)]
pub(crate) struct RepeatedPlan {
    key: PlanKey,
    columns: Vec<PhysicalExprRef>,
}

impl RepeatedPlan {
    /// Whether both are the same, except for what is scanned.
    pub(crate) fn is_of_same_plan(&self, other: &Self) -> bool {
        self.key.is_of_same_plan(&other.key) && self.columns == other.columns
    }
}

impl PlanKey {
    /// Whether this may be the plan of a table that has grown since: one that reads fewer files or batches reads a part
    /// of the table, as below a condition on partition columns.
    pub(crate) fn may_succeed(&self, older: &Self) -> bool {
        let size = |key: &Self| key.layouts.iter().map(Layout::len).sum::<usize>();
        self.is_of_same_plan(older) && size(self) >= size(older)
    }

    /// Which files are not among those of an older plan. `None` if it does not scan the whole of each of its files, in
    /// the same order, or scans others, too.
    pub(crate) fn files_added_since(&self, older: &Self) -> Option<Vec<bool>> {
        let files = |key: &'_ Self| match key.layouts.as_slice() {
            [Layout::Files(groups)] => Some(groups.iter().flatten().cloned().collect::<Vec<_>>()),
            _ => None,
        };
        let (now, before) = (files(self)?, files(older)?);
        let are_whole = now.iter().all(|file| file.range.is_none());
        let added = || added(now.iter(), before.iter(), PartialEq::eq);
        are_whole.then(added)?
    }

    fn deals_out_batches(&self) -> bool {
        let mut operators = self.operators.iter();
        operators.any(|operator| matches!(operator, Operator::RoundRobin(_)))
    }

    /// Whether both plans compute the same, if their tables are the same.
    pub(crate) fn is_of_same_plan(&self, other: &Self) -> bool {
        self.operators == other.operators
    }
}

/// # Errors
/// An execution error if a file that a plan of a range join scans is gone or has changed since it was planned.
pub(crate) async fn check_unchanged(
    plan: &Arc<dyn ExecutionPlan>,
    context: &TaskContext,
) -> Result<()> {
    if let Some(scanned) = ScanPlan::of(plan) {
        scanned.check_files("of a range join", context).await?;
    }
    Ok(())
}

/// An expression over these columns, by what they are; `None` if it refers to others.
pub(crate) fn over(columns: &[PhysicalExprRef], expr: &PhysicalExprRef) -> Option<PhysicalExprRef> {
    let replaced = Arc::clone(expr).transform_up(|e| {
        let Some(column) = e.downcast_ref::<Column>() else {
            return Ok(Transformed::no(e));
        };
        match columns.get(column.index()) {
            Some(known) => Ok(Transformed::yes(Arc::clone(known))),
            None => internal_err!("a plan has no column {column}"),
        }
    });
    replaced.data().ok()
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
