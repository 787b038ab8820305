//! Reads the columns of a relation in the order of their positions, and tells which version of a table that is.
//!
//! Positions count a table's rows in scan order: the partitions of a table in memory one after another, files by path.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::ArrayRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err, resources_err};
use datafusion::datasource::MemTable;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::object_store::{GetOptions, GetResultPayload, ObjectMeta, ObjectStore};
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt};

use crate::common::column_ref::ColumnRef;
use crate::common::options::ByteSize;
use crate::index::sort_keys::Chunks;
use crate::index::version::{FileVersion, LocalFile, Version};

/// How many files are asked for their state at a time.
const FILES_AT_ONCE: usize = 32;

/// Plans the scan of some columns of a table, its partitions in a stable order.
///
/// # Errors
/// An error naming the columns that the table no longer has, and the provider's own.
pub(crate) async fn plan_table_scan(
    session: &dyn Session,
    name: &ColumnRef,
    provider: &Arc<dyn TableProvider>,
    columns: &BTreeSet<String>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = provider.schema();
    let indices = columns.iter().map(|column| match schema.index_of(column) {
        Ok(i) => Ok(i),
        Err(_) => exec_err!(
            "the column '{}.{column}' is gone since the query was planned",
            name.table
        ),
    });
    let projection = indices.collect::<Result<Vec<_>>>()?;
    let state = session.as_any().downcast_ref::<SessionState>();
    match state.filter(|_| !provider.is::<MemTable>()) {
        Some(state) => {
            provider
                .scan(&scan_state(state)?, Some(&projection), &[], None)
                .await
        }
        None => provider.scan(session, Some(&projection), &[], None).await,
    }
}

/// The session, set so that files come in the order of their paths, as they are now: in one partition, their list and
/// footers asked of the store, not of the session's caches.
fn scan_state(state: &SessionState) -> Result<SessionState> {
    let runtime = RuntimeEnvBuilder::from_runtime_env(state.runtime_env())
        .with_cache_manager(CacheManagerConfig::default())
        .build_arc()?;
    // The builder's own copy of the configuration: it does not make a new default catalog, which would replace the
    // session's.
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

/// The version of a scan's data: of each column in memory, or of the files.
#[derive(Debug)]
pub(crate) struct ScanVersion(Data);

#[derive(Debug)]
enum Data {
    Columns(HashMap<String, Version>),
    Files {
        version: Version,
        files: Vec<FileVersion>,
        /// When the store began to be asked.
        asked: SystemTime,
    },
}

impl ScanVersion {
    fn of_files(
        provider: &Arc<dyn TableProvider>,
        files: Vec<FileVersion>,
        asked: SystemTime,
    ) -> Self {
        let version = Version::Files {
            provider: Arc::downgrade(provider),
            files: files.clone(),
        };
        Self(Data::Files {
            version,
            files,
            asked,
        })
    }

    pub(crate) fn of_column(&self, column: &str) -> Version {
        match &self.0 {
            // A column that is not there has no arrays, as an empty table.
            Data::Columns(columns) => columns
                .get(column)
                .cloned()
                .unwrap_or_else(|| Version::from_arrays(&[])),
            Data::Files { version, .. } => version.clone(),
        }
    }

    /// Whether what was read between `before` and this version was this version, and any change since `before` shows.
    pub(crate) fn is_settled_since(&self, before: &Self) -> bool {
        match (&self.0, &before.0) {
            (Data::Columns(_), Data::Columns(_)) => true,
            (
                Data::Files { files: after, .. },
                Data::Files {
                    files: before,
                    asked,
                    ..
                },
            ) => after == before && before.iter().all(|file| file.is_settled_at(*asked)),
            _ => false,
        }
    }
}

/// The version of what a table's scan would read now; `None` if the provider does not let one tell.
///
/// # Errors
/// If a file is gone or has changed since the scan was planned: reading it by what was known of it then would give garbage.
pub(crate) async fn read_version(
    table: &str,
    scan: &Arc<dyn ExecutionPlan>,
    provider: &Arc<dyn TableProvider>,
    context: &Arc<TaskContext>,
) -> Result<Option<ScanVersion>> {
    let Some(source) = scan.downcast_ref::<DataSourceExec>() else {
        return Ok(None);
    };
    if let Some(memory) = source.data_source().downcast_ref::<MemorySourceConfig>() {
        let columns = scan.schema();
        let names = columns.fields().iter().map(|f| f.name().clone());
        let versions = names.map(|name| {
            let chunks = memory_chunks(memory, &name)?;
            Ok((name, Version::from_arrays(&chunks)))
        });
        return Ok(Some(ScanVersion(Data::Columns(
            versions.collect::<Result<_>>()?,
        ))));
    }
    // Another provider's scan of files may leave out rows by rules of its own.
    if !provider.is::<ListingTable>() {
        return Ok(None);
    }
    let Some(files) = source.data_source().downcast_ref::<FileScanConfig>() else {
        return Ok(None);
    };
    let url = &files.object_store_url;
    let store = context.runtime_env().object_store(url)?;
    let asked = SystemTime::now();
    let mut heads = vec![];
    for group in &files.file_groups {
        for file in group.iter() {
            heads.push(head(
                Arc::clone(&store),
                file.object_meta.clone(),
                table.to_string(),
            ));
        }
    }
    let files = futures::stream::iter(heads)
        .buffered(FILES_AT_ONCE)
        .map_ok(|(meta, local)| FileVersion::new(url.as_str(), meta, local))
        .try_collect()
        .await?;
    Ok(Some(ScanVersion::of_files(provider, files, asked)))
}

/// What the store says now of a file that a scan was planned with, and what this machine's file system does where the store
/// is that.
async fn head(
    store: Arc<dyn ObjectStore>,
    known: ObjectMeta,
    table: String,
) -> Result<(ObjectMeta, Option<LocalFile>)> {
    let file = known.location;
    let gone = |error: DataFusionError| {
        error.context(format!(
            "the file {file} of table '{table}' can't be read any more"
        ))
    };
    let options = GetOptions::new().with_head(true);
    let found = store.get_opts(&file, options).await;
    let found = found.map_err(|error| gone(error.into()))?;
    let local = match &found.payload {
        GetResultPayload::File(open, _) => {
            let metadata = open.metadata().map_err(|error| gone(error.into()))?;
            Some(LocalFile::new(&metadata))
        }
        GetResultPayload::Stream(_) => None,
    };
    let now = found.meta;
    if (now.size, now.last_modified) != (known.size, known.last_modified) {
        return exec_err!(
            "the file {file} of table '{table}' changed while a query over it was running or being planned; run the query again"
        );
    }
    Ok((now, local))
}

/// The arrays of one column of a table in memory, in the order of their positions.
fn memory_chunks(memory: &MemorySourceConfig, column: &str) -> Result<Vec<ArrayRef>> {
    let chunk = |batch: &arrow::array::RecordBatch| match batch.column_by_name(column) {
        Some(array) => Ok(Arc::clone(array)),
        None => exec_err!("the column {column} is missing in a batch of its table"),
    };
    memory.partitions().iter().flatten().map(chunk).collect()
}

/// Columns in memory, each in chunks.
#[derive(Debug)]
pub(crate) struct Loaded {
    columns: HashMap<String, Vec<ArrayRef>>,
    /// Registers what was read while it is held; `None` for a table in memory, which is not copied.
    memory: Option<MemoryReservation>,
}

impl Loaded {
    pub(crate) fn chunks(&self, column: &str) -> Result<Chunks> {
        match self.columns.get(column) {
            Some(arrays) => Ok(Chunks {
                arrays: arrays.clone(),
                held_by_table: self.memory.is_none(),
            }),
            None => internal_err!("the column {column} was not loaded"),
        }
    }
}

/// Reads columns from a scan, partition after partition. A table in memory is not copied.
///
/// # Errors
/// What reading comes to; "Resources exhausted" where the columns do not fit the limit or the session's memory pool.
pub(crate) async fn load_columns(
    relation: &str,
    scan: &Arc<dyn ExecutionPlan>,
    columns: &BTreeSet<&str>,
    context: &Arc<TaskContext>,
    limit: ByteSize,
) -> Result<Loaded> {
    if let Some(source) = scan.downcast_ref::<DataSourceExec>()
        && source.fetch().is_none()
        && let Some(memory) = source.data_source().downcast_ref::<MemorySourceConfig>()
    {
        let chunks = columns
            .iter()
            .map(|c| Ok(((*c).to_string(), memory_chunks(memory, c)?)));
        return Ok(Loaded {
            columns: chunks.collect::<Result<_>>()?,
            memory: None,
        });
    }

    let schema = scan.schema();
    let indices = columns
        .iter()
        .map(|c| Ok((*c, schema.index_of(c)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut loaded: HashMap<String, Vec<ArrayRef>> =
        columns.iter().map(|c| ((*c).to_string(), vec![])).collect();
    let reservation =
        MemoryConsumer::new(format!("rmq columns of {relation}")).register(context.memory_pool());
    for partition in 0..scan.properties().output_partitioning().partition_count() {
        let mut batches = scan.execute(partition, Arc::clone(context))?;
        while let Some(batch) = batches.next().await.transpose()? {
            for (column, i) in &indices {
                let array = batch.column(*i);
                reservation.try_grow(array.get_array_memory_size())?;
                if reservation.size() > limit.0 {
                    return resources_err!(
                        "the columns of {relation} that the query asks take more than rmq.index_memory_limit = '{limit}'; raise it, for \
                         example SET rmq.index_memory_limit = '{}G'",
                        ((2 * limit.0) >> 30) + 1
                    );
                }
                if let Some(chunks) = loaded.get_mut(*column) {
                    chunks.push(Arc::clone(array));
                }
            }
        }
    }
    Ok(Loaded {
        columns: loaded,
        memory: Some(reservation),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::datatypes::Schema;
    use datafusion::object_store::path::Path;

    use super::*;

    /// A second write within the tick of the file's clock, while the first contents are read, leaves the time of the first.
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
            let asked = changed + Duration::from_secs(seconds);
            ScanVersion::of_files(&provider, vec![file.clone()], asked)
        };
        assert!(!seen(30).is_settled_since(&seen(1)));
        assert!(seen(30).is_settled_since(&seen(3)));
        assert!(!seen(30).is_settled_since(&ScanVersion::of_files(&provider, vec![], changed)));
    }
}
