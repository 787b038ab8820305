//! What tells that a table has not changed since its index was built. A stale answer is the worst that
//! could happen: whatever is in doubt counts as changed.

use std::fs::Metadata;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arrow::array::{Array, ArrayRef};
use datafusion::catalog::TableProvider;
use datafusion::object_store::ObjectMeta;

/// A file's own clock may tick this coarsely: two writes within one tick can leave the same time. A file that
/// was changed less long ago, when it was read, can't be told from a later change to it.
const CLOCK_TICK: Duration = Duration::from_secs(2);

/// One state of a table's column.
#[derive(Debug, Clone)]
pub(crate) enum Version {
    /// Arrays in memory, which never change: the same arrays are the same values. Held weakly, so that
    /// memory goes when its table goes; while the weak ones live, no other array can take their addresses.
    Arrays(Vec<Weak<dyn Array>>),
    /// Files, as the provider that was asked for them lists them.
    Files {
        provider: Weak<dyn TableProvider>,
        files: Vec<FileVersion>,
    },
}

/// What the store says of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileVersion {
    store: String,
    meta: ObjectMeta,
    local: Option<LocalFile>,
}

/// What this machine's file system says of a file beyond what object stores say. Its modification time can be set to any
/// value, as `cp -p` and archives do; these can't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalFile {
    /// The device and the inode, where files have these.
    place: Option<(u64, u64)>,
    /// When the contents or the attributes last changed; where the system does not tell, when the file was created. `None` if
    /// the time can't be told.
    changed: Option<SystemTime>,
}

impl LocalFile {
    #[cfg(unix)]
    pub(crate) fn new(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let seconds = u64::try_from(metadata.ctime()).map(Duration::from_secs);
        let nanos = u64::try_from(metadata.ctime_nsec()).map(Duration::from_nanos);
        let since = seconds.ok().zip(nanos.ok()).map(|(s, n)| s + n);
        Self {
            place: Some((metadata.dev(), metadata.ino())),
            changed: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self {
            place: None,
            changed: metadata.created().ok(),
        }
    }
}

impl FileVersion {
    /// A file of the store at the address `store`; `local` if it is one of this machine's file system.
    pub(crate) fn new(
        store: impl Into<String>,
        meta: ObjectMeta,
        local: Option<LocalFile>,
    ) -> Self {
        Self {
            store: store.into(),
            meta,
            local,
        }
    }

    /// Whether a change after this time would show in the file's times.
    pub(crate) fn is_settled_at(&self, time: SystemTime) -> bool {
        // A time in the future comes from another clock: nothing can be said.
        let is_old = |changed| {
            let age = time.duration_since(changed);
            age.is_ok_and(|age| age > CLOCK_TICK)
        };
        let local = self.local.as_ref();
        is_old(self.meta.last_modified.into())
            && local.is_none_or(|local| local.changed.is_some_and(is_old))
    }
}

impl Version {
    /// The version that a column made up of these arrays has.
    pub(crate) fn of_arrays(chunks: &[ArrayRef]) -> Self {
        Self::Arrays(chunks.iter().map(Arc::downgrade).collect())
    }

    /// Whether both are the same state of the same data.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Arrays(a), Self::Arrays(b)) => {
                a.len() == b.len()
                    && a.iter()
                        .zip(b)
                        .all(|(a, b)| std::ptr::addr_eq(a.as_ptr(), b.as_ptr()))
            }
            (
                Self::Files {
                    provider: a,
                    files: a_files,
                },
                Self::Files {
                    provider: b,
                    files: b_files,
                },
            ) => std::ptr::addr_eq(a.as_ptr(), b.as_ptr()) && a_files == b_files,
            _ => false,
        }
    }

    /// Whether a table may still have this version: false once its data are gone.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Arrays(arrays) => arrays.iter().all(|a| a.strong_count() > 0),
            Self::Files { provider, .. } => provider.strong_count() > 0,
        }
    }
}
