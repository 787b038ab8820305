//! The versions of the files that a scan reads, requested from their store.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::execution::TaskContext;
use datafusion::object_store::{GetOptions, GetResultPayload, ObjectMeta, ObjectStore};
use futures::{StreamExt, TryStreamExt};

use crate::kept::version::{FileVersion, LocalFile};

/// How many files' metadata is requested concurrently.
const CONCURRENT_REQUESTS: usize = 32;

/// The current version of each file that a scan reads, in the order of its groups. `whose` tells in errors which scan
/// it is: "of table 't'".
///
/// # Errors
/// An execution error if a file is gone or has changed since the scan was planned: read with its planned size it would
/// be garbage.
pub(crate) async fn file_versions(
    whose: &str,
    scan: &FileScanConfig,
    context: &TaskContext,
) -> Result<Vec<FileVersion>> {
    let url = &scan.object_store_url;
    let store = context.runtime_env().object_store(url)?;
    let heads = planned_files(scan).into_iter();
    let heads = heads.map(|meta| head(Arc::clone(&store), meta.clone(), whose.to_string()));
    let heads: Vec<_> = heads.collect();
    futures::stream::iter(heads)
        .buffered(CONCURRENT_REQUESTS)
        .map_ok(|(meta, local)| FileVersion::new(url.as_str(), meta, local))
        .try_collect()
        .await
}

/// What the store told of each file that a scan reads when they were listed, in the order of its groups.
pub(crate) fn planned_file_versions(scan: &FileScanConfig) -> Vec<FileVersion> {
    let url = scan.object_store_url.as_str();
    let files = planned_files(scan).into_iter();
    files
        .map(|meta| FileVersion::new(url, meta.clone(), None))
        .collect()
}

/// The metadata of each file that a scan reads from when they were listed, in the order of its groups.
pub(crate) fn planned_files(scan: &FileScanConfig) -> Vec<&ObjectMeta> {
    let mut seen = HashSet::new();
    let files = scan.file_groups.iter().flat_map(FileGroup::iter);
    let files = files.map(|file| &file.object_meta);
    // A large file has parts in several groups.
    files.filter(|meta| seen.insert(&meta.location)).collect()
}

/// Requests the current metadata of a file that a scan was planned with, and that of the local file system if the store
/// is local.
async fn head(
    store: Arc<dyn ObjectStore>,
    known: ObjectMeta,
    whose: String,
) -> Result<(ObjectMeta, Option<LocalFile>)> {
    let file = known.location;
    let gone = |error: DataFusionError| {
        error.context(format!("the file {file} {whose} can't be read any more"))
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
    // A store within another may answer with the path there.
    let now = ObjectMeta {
        location: file,
        ..found.meta
    };
    if (now.size, now.last_modified) != (known.size, known.last_modified) {
        return exec_err!(
            "the file {} {whose} changed while a query over it was running or being planned; run the query again",
            now.location
        );
    }
    Ok((now, local))
}
