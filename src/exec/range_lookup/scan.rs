//! The scan of a relation's columns in the order of their positions, and the version of a table's data.
//!
//! Positions count a table's rows in scan order: the partitions of a table in memory one after another, files by path.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err};
use datafusion::datasource::MemTable;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::file_versions::file_versions;
use crate::exec::common::pieces::over_pieces;
use crate::exec::common::plan_key::ScanPlan;
use crate::kept::table_version::{StatedTable, VersionedTypes};
use crate::kept::version::{FileVersion, Span, Version};
use datafusion_rmq_logical::common::column_ref::ColumnRef;

/// How the required columns of a relation are read.
#[derive(Debug)]
pub(crate) enum RelationScan {
    /// Those of a table in memory, as they were when the query was planned.
    Memory {
        schema: SchemaRef,
        columns: HashMap<String, Vec<ArrayRef>>,
    },
    /// A plan of these columns.
    Plan(PlannedScan),
}

/// A plan of columns of a relation.
#[derive(Debug, Clone)]
pub(crate) struct PlannedScan {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    /// Its table in the version that it had when the scan was planned.
    stated: Option<Arc<StatedTable>>,
    /// How many rows that is by this version.
    pub(super) rows: Option<u64>,
    /// The rows at the beginning that are not needed.
    pub(super) skipped: usize,
}

impl RelationScan {
    /// The schema of the columns.
    pub(crate) fn schema(&self) -> SchemaRef {
        match self {
            Self::Memory { schema, .. } => Arc::clone(schema),
            Self::Plan(scan) => scan.plan.schema(),
        }
    }

    /// The scan of the arrays, files or stated parts of this span alone, which begins with number `first`; all others
    /// are before it. `None` if it can't be made of this one.
    pub(crate) fn tail(&self, first: usize, span: Span) -> Option<Self> {
        let pieces = first + span.pieces;
        match self {
            Self::Memory { schema, columns } => {
                let columns = columns.iter().map(|(name, arrays)| {
                    let tail = arrays.get(first..).filter(|_| arrays.len() == pieces)?;
                    Some((name.clone(), tail.to_vec()))
                });
                Some(Self::Memory {
                    schema: Arc::clone(schema),
                    columns: columns.collect::<Option<_>>()?,
                })
            }
            Self::Plan(whole) => {
                if let Some(stated) = &whole.stated {
                    if stated.version.parts().len() != pieces {
                        return None;
                    }
                    let mut tail = whole.clone();
                    if let Some(plan) = stated.scan_of_parts(&whole.plan, &|part| part >= first) {
                        (tail.plan, tail.rows) = (plan, Some(span.size));
                    } else {
                        tail.skipped = usize::try_from(whole.rows? - span.size).ok()?;
                    }
                    return Some(Self::Plan(tail));
                }
                let source = whole.plan.downcast_ref::<DataSourceExec>()?;
                let files = source.data_source().downcast_ref::<FileScanConfig>()?;
                let all: usize = files.file_groups.iter().map(FileGroup::len).sum();
                // A file that is scanned in parts is one of the version.
                if all != pieces || source.fetch().is_some() {
                    return None;
                }
                let tail = over_pieces(&whole.plan, &|file| file >= first).ok()?;
                Some(Self::Plan(PlannedScan::of(tail)))
            }
        }
    }

    /// The columns of a table in memory. A plan of it would copy the list of all columns of all batches twice, whether
    /// they are read or an index is kept.
    async fn of_table(table: &MemTable, projection: &[usize]) -> Result<Self> {
        let schema = Arc::new(table.schema().project(projection)?);
        let mut columns = HashMap::new();
        for partition in &table.batches {
            add_batches(&mut columns, &schema, &partition.read().await)?;
        }
        Ok(Self::Memory { schema, columns })
    }

    /// The columns that a plan returns, as they are if it only reads memory.
    pub(crate) fn of_plan(plan: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let source = plan.downcast_ref::<DataSourceExec>();
        let source = source.filter(|source| source.fetch().is_none());
        let Some(memory) =
            source.and_then(|source| source.data_source().downcast_ref::<MemorySourceConfig>())
        else {
            return Ok(Self::Plan(PlannedScan::of(plan)));
        };
        let (schema, mut columns) = (plan.schema(), HashMap::new());
        for batches in memory.partitions() {
            add_batches(&mut columns, &schema, batches)?;
        }
        Ok(Self::Memory { schema, columns })
    }
}

impl PlannedScan {
    /// All rows of a plan.
    fn of(plan: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            plan,
            stated: None,
            rows: None,
            skipped: 0,
        }
    }
}

/// Adds the arrays of batches to the columns of this schema.
fn add_batches(
    columns: &mut HashMap<String, Vec<ArrayRef>>,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<()> {
    // A name that several columns have is that of the first.
    let names: BTreeSet<&String> = schema.fields().iter().map(|field| field.name()).collect();
    for name in names {
        let chunks = columns.entry(name.clone()).or_default();
        for batch in batches {
            match batch.column_by_name(name) {
                Some(array) => chunks.push(Arc::clone(array)),
                None => {
                    return exec_err!("the column {name} is missing in a batch of its table");
                }
            }
        }
    }
    Ok(())
}

/// Plans the scan of some columns of a table, with partitions in a stable order.
///
/// # Errors
/// An error that names the columns that the table no longer has, and the provider's own.
pub(crate) async fn plan_table_scan(
    session: &dyn Session,
    name: &ColumnRef,
    provider: &Arc<dyn TableProvider>,
    columns: &BTreeSet<String>,
    versioned: &VersionedTypes,
) -> Result<RelationScan> {
    let schema = provider.schema();
    let indices = columns.iter().map(|column| match schema.index_of(column) {
        Ok(i) => Ok(i),
        Err(_) => exec_err!(
            "the column '{}.{column}' is gone since the query was planned",
            name.table
        ),
    });
    let projection = indices.collect::<Result<Vec<_>>>()?;
    if let Some(table) = provider.downcast_ref::<MemTable>() {
        return RelationScan::of_table(table, &projection).await;
    }
    let stated = versioned.stated(provider);
    let plan = match session.as_any().downcast_ref::<SessionState>() {
        Some(state) => {
            let state = scan_state(state)?;
            provider.scan(&state, Some(&projection), &[], None).await
        }
        None => provider.scan(session, Some(&projection), &[], None).await,
    };
    // The scan is of the version before and after it is planned, if these are the same.
    match stated.filter(StatedTable::is_present) {
        Some(stated) => Ok(RelationScan::Plan(PlannedScan {
            rows: Some(stated.version.rows()),
            stated: Some(Arc::new(stated)),
            ..PlannedScan::of(plan?)
        })),
        None => RelationScan::of_plan(plan?),
    }
}

/// Configures a session to scan the current files in the order of their paths: in one partition, with their list and
/// footers read from the store instead of the session's caches.
fn scan_state(state: &SessionState) -> Result<SessionState> {
    let runtime = RuntimeEnvBuilder::from_runtime_env(state.runtime_env())
        .with_cache_manager(CacheManagerConfig::default())
        .build_arc()?;
    // Changes the builder's own copy of the configuration: a new one would create a default catalog, which would
    // replace the session's.
    let mut builder = SessionStateBuilder::new_from_existing(state.clone());
    let mut config = builder
        .config()
        .take()
        .unwrap_or_default()
        .with_target_partitions(1);
    let options = config.options_mut();
    options.execution.split_file_groups_by_statistics = false;
    options.execution.collect_statistics = false;
    options.optimizer.preserve_file_partitions = 0;
    Ok(builder
        .with_config(config)
        .with_runtime_env(runtime)
        .build())
}

/// The version of a scan's data.
#[derive(Debug)]
pub(crate) struct ScanVersion {
    /// Those of the columns of a table in memory.
    columns: HashMap<String, Version>,
    /// That of all other columns.
    version: Version,
}

impl ScanVersion {
    /// Of all columns.
    fn new(version: Version) -> Self {
        Self {
            columns: HashMap::new(),
            version,
        }
    }

    /// The version of one column. One that is missing has no arrays, as in an empty table.
    pub(crate) fn of_column(&self, column: &str) -> &Version {
        self.columns.get(column).unwrap_or(&self.version)
    }

    /// The versions of the files that a table provider has listed.
    pub(crate) fn listed_files(&self) -> Option<&[FileVersion]> {
        self.version.listed_files()
    }

    /// Whether data read between `before` and this version was of this version, and any change since `before` would be
    /// visible. Columns in memory are those of the scan.
    pub(crate) fn is_settled_since(&self, before: &Self) -> bool {
        self.version.matches(&before.version) && before.version.is_settled()
    }
}

/// Reads the version of the data that a table's scan would return now; `None` if the provider does not reveal it.
///
/// # Errors
/// An execution error if a file is gone or has changed since the scan was planned: read with its planned size it would
/// be garbage.
pub(crate) async fn read_version(
    table: &str,
    scan: &RelationScan,
    provider: &Arc<dyn TableProvider>,
    context: &Arc<TaskContext>,
) -> Result<Option<ScanVersion>> {
    let scan = match scan {
        RelationScan::Memory { columns, .. } => {
            let columns = columns.iter();
            let versions =
                columns.map(|(name, chunks)| (name.clone(), Version::from_arrays(chunks)));
            return Ok(Some(ScanVersion {
                columns: versions.collect(),
                ..ScanVersion::new(Version::from_arrays([]))
            }));
        }
        RelationScan::Plan(PlannedScan {
            stated: Some(stated),
            ..
        }) => {
            let version = || ScanVersion::new(Version::from_stated(stated.version.clone()));
            return Ok(stated.is_present().then(version));
        }
        RelationScan::Plan(scan) => &scan.plan,
    };
    let Some(source) = scan.downcast_ref::<DataSourceExec>() else {
        return Ok(None);
    };
    // Other providers may skip rows of the files they scan.
    if !provider.is::<ListingTable>() {
        return Ok(None);
    }
    let Some(files) = source.data_source().downcast_ref::<FileScanConfig>() else {
        return Ok(None);
    };
    let requested = SystemTime::now();
    let files = file_versions(&format!("of table '{table}'"), files, context).await?;
    let version = Version::from_files(provider, files, requested);
    Ok(Some(ScanVersion::new(version)))
}

/// Reads the version of the files that a plan reads; `None` if it reads anything else.
///
/// # Errors
/// As [`read_version`].
pub(crate) async fn version_of_files(
    label: &str,
    plan: &Arc<dyn ExecutionPlan>,
    context: &TaskContext,
) -> Result<Option<ScanVersion>> {
    let Some(scanned) = ScanPlan::of(plan).filter(ScanPlan::reads_files) else {
        return Ok(None);
    };
    let Some(planned) = scanned.planned_version(&[]) else {
        return Ok(None);
    };
    let whose = format!("of '{label}'");
    let version = scanned.present_version(planned, &whose, context).await?;
    Ok(Some(ScanVersion::new(version)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::datatypes::Schema;
    use datafusion::object_store::ObjectMeta;
    use datafusion::object_store::path::Path;

    use super::*;

    /// A second write within the tick of the file's clock, while the first contents are read, leaves the time of the
    /// first.
    #[test]
    fn a_file_is_settled_if_it_was_when_reading_began() {
        let table = MemTable::try_new(Arc::new(Schema::empty()), vec![vec![]]).unwrap();
        let provider = Arc::new(table) as Arc<dyn TableProvider>;
        let changed = SystemTime::now() - Duration::from_mins(1);
        let meta = ObjectMeta {
            location: Path::from("a.parquet"),
            last_modified: changed.into(),
            size: 1,
            e_tag: None,
            version: None,
        };
        let file = FileVersion::new("s3://b/", meta, None);
        let seen = |seconds| {
            let requested = changed + Duration::from_secs(seconds);
            ScanVersion::new(Version::from_files(
                &provider,
                vec![file.clone()],
                requested,
            ))
        };
        assert!(!seen(30).is_settled_since(&seen(1)));
        assert!(seen(30).is_settled_since(&seen(3)));
        let other = ScanVersion::new(Version::from_files(&provider, vec![], changed));
        assert!(!seen(30).is_settled_since(&other));
    }
}
