//! The version of a table's data, which tells whether the table has changed since an index was built. A stale answer is
//! the worst possible failure, so anything in doubt counts as changed.
//!
//! In memory: the same Arrow arrays, compared by address and referenced weakly. In files: the same provider object, and
//! for every file the same path, size, time, etag and version. Local files (those that the store returns as an open
//! file) must also have the same device, inode and change time. These are requested from the store before and after
//! reading, and only count if the file last changed more than two seconds before reading began: within one tick of a
//! file system's clock, a second write cannot be detected. DataFusion's caches of file lists and footers are not used
//! for it. Other providers may state a version. Everything else is indexed for one query.

use std::fs::Metadata;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::catalog::TableProvider;
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path;

use crate::common::identity::Identity;
use crate::index::table_version::TableVersion;

/// The coarsest resolution of a file's times: two writes within one tick can have the same time. If a file was read
/// less than a tick after a change, a later change may be invisible.
const CLOCK_TICK: Duration = Duration::from_secs(2);

/// One version of a table's column.
#[derive(Debug, Clone)]
pub(crate) enum Version {
    /// Arrays in memory, which are immutable: the same arrays are the same values. The references are weak, so that the
    /// memory is freed with the table; while they exist, no other array can have the same address.
    Arrays(Arc<[Weak<dyn Array>]>),
    /// What a plan scans.
    Scans(ScannedData),
    /// Files, as listed by this table provider.
    Files {
        provider: Weak<dyn TableProvider>,
        files: Vec<FileVersion>,
    },
    /// As a table provider states it.
    Stated(TableVersion),
}

/// Consecutive arrays, files or stated parts of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Their number.
    pub(crate) pieces: usize,
    /// The rows of arrays and of stated parts, the bytes of files.
    pub(crate) size: u64,
}

/// Columns of batches in memory, as arrays that are referenced weakly, files, and versions that tables have stated.
#[derive(Debug, Clone)]
pub(crate) struct ScannedData {
    columns: Arc<[Weak<dyn Array>]>,
    files: Vec<FileVersion>,
    stated: Vec<TableVersion>,
}

impl ScannedData {
    fn matches(&self, other: &Self) -> bool {
        same_arrays(&self.columns, &other.columns)
            && self.files == other.files
            && self.stated == other.stated
    }

    /// Whether the first array, the first file and the first table of `other` are among these.
    fn has_first_of(&self, other: &Self) -> bool {
        let first = other.columns.first().map(address);
        let mut arrays = self.columns.iter().map(address);
        let file = other.files.first().map(FileVersion::path);
        let mut files = self.files.iter().map(FileVersion::path);
        let table = other.stated.first();
        let mut tables = self.stated.iter();
        first.is_none_or(|first| arrays.any(|array| array == first))
            && file.is_none_or(|file| files.any(|path| path == file))
            && table.is_none_or(|table| tables.any(|now| now.is_of_table(table)))
    }

    /// See [`Version::added_since`].
    fn added_since(&self, older: &Self, pieces: usize, is_planned: bool) -> Option<Vec<bool>> {
        if !self.stated.is_empty() {
            return None;
        }
        if self.columns.is_empty() && older.columns.is_empty() && self.files.len() == pieces {
            let is_same = |file: &FileVersion, old: &FileVersion| {
                old == file || is_planned && old.is_as_planned(file)
            };
            let mut left = older.files.iter().peekable();
            let added = self.files.iter();
            let added = added.map(|file| left.next_if(|old| is_same(file, old)).is_none());
            let added = added.collect();
            return left.peek().is_none().then_some(added);
        }
        let width = self.columns.len().checked_div(pieces)?;
        if width == 0 || !(self.files.is_empty() && older.files.is_empty()) {
            return None;
        }
        let mut left = older.columns.chunks(width).peekable();
        let batches = self.columns.chunks(width);
        let added = batches.map(|batch| left.next_if(|old| same_arrays(old, batch)).is_none());
        let added = added.collect();
        left.peek().is_none().then_some(added)
    }

    /// Whether the first and the last array exist. There may be many of many tables, which all queries would look at.
    fn is_alive(&self) -> bool {
        let mut ends = [self.columns.first(), self.columns.last()]
            .into_iter()
            .flatten();
        ends.all(|array| array.strong_count() > 0)
    }
}

/// The metadata of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileVersion {
    store: String,
    meta: ObjectMeta,
    local: Option<LocalFile>,
}

/// The metadata of a local file that object stores don't have. Unlike the modification time, which `cp -p` and archives
/// set, these can't be set to any value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalFile {
    /// The device and the inode, on systems with these.
    inode: Option<(u64, u64)>,
    /// When the contents or the attributes last changed; when the file was created on systems without that time. `None`
    /// if neither is known.
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
            inode: Some((metadata.dev(), metadata.ino())),
            changed: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self {
            inode: None,
            changed: metadata.created().ok(),
        }
    }
}

impl FileVersion {
    /// A file of the object store at the URL `store`; `local` if the file is in the local file system.
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

    /// Adds what tells this version of the file from others. Not the device: it may have another number when the file
    /// system is mounted the next time.
    fn add_to(&self, identity: &mut Identity) {
        let Self { store, meta, local } = self;
        let local = local.as_ref().map(|local| {
            let inode = local.inode.map(|(_, inode)| inode);
            (inode, local.changed)
        });
        let ObjectMeta {
            location,
            last_modified,
            size,
            e_tag,
            version,
        } = meta;
        identity.add_debug(&(store, location.as_ref(), last_modified, size));
        identity.add_debug(&(e_tag, version, local));
    }

    /// Whether this is the file as a plan has listed it, with what its store tells of it.
    fn is_as_planned(&self, planned: &Self) -> bool {
        (&self.store, &self.meta) == (&planned.store, &planned.meta)
    }

    /// Its store and path.
    fn path(&self) -> (&str, &Path) {
        (&self.store, &self.meta.location)
    }

    /// Whether a change after `time` would change the file's times.
    pub(crate) fn is_settled_at(&self, time: SystemTime) -> bool {
        // A time in the future comes from another clock, so it proves nothing.
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
    /// The version of a column that consists of these arrays.
    pub(crate) fn from_arrays<'a>(chunks: impl IntoIterator<Item = &'a ArrayRef>) -> Self {
        Self::Arrays(chunks.into_iter().map(Arc::downgrade).collect())
    }

    /// The version of these columns of batches, of these files, and of tables that have stated these. `None` without
    /// any.
    pub(crate) fn from_scans<'a>(
        batches: impl IntoIterator<Item = (&'a RecordBatch, &'a [usize])>,
        files: Vec<FileVersion>,
        stated: Vec<TableVersion>,
    ) -> Option<Self> {
        let columns = batches.into_iter().flat_map(|(batch, read)| {
            let read = read.iter();
            read.map(|column| Arc::downgrade(batch.column(*column)))
        });
        let columns: Arc<[_]> = columns.collect();
        let is_empty = columns.is_empty() && files.is_empty() && stated.is_empty();
        (!is_empty).then_some(Self::Scans(ScannedData {
            columns,
            files,
            stated,
        }))
    }

    /// Adds what tells this version from others in any process; returns the store and the path of the first file.
    /// `None` if it is not one of files alone.
    pub(crate) fn add_to(&self, identity: &mut Identity) -> Option<(&str, &Path)> {
        let files = match self {
            Self::Scans(ScannedData {
                columns,
                files,
                stated,
            }) if columns.is_empty() && stated.is_empty() => files,
            Self::Files { files, .. } => files,
            Self::Arrays(_) | Self::Scans(_) | Self::Stated(_) => return None,
        };
        for file in files {
            file.add_to(identity);
        }
        files.first().map(FileVersion::path)
    }

    /// Whether files are part of it, which may change while they are read.
    pub(crate) fn has_files(&self) -> bool {
        match self {
            Self::Arrays(_) | Self::Stated(_) => false,
            Self::Scans(ScannedData { files, .. }) | Self::Files { files, .. } => !files.is_empty(),
        }
    }

    /// Whether a change of its files after `time` would change the files' times.
    pub(crate) fn is_settled_at(&self, time: SystemTime) -> bool {
        match self {
            Self::Arrays(_) | Self::Stated(_) => true,
            Self::Scans(ScannedData { files, .. }) | Self::Files { files, .. } => {
                files.iter().all(|file| file.is_settled_at(time))
            }
        }
    }

    /// Whether this may be a later version of what had another version: it has the first array or file of that.
    pub(crate) fn may_succeed(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Scans(now), Self::Scans(before)) if now.has_first_of(before))
    }

    /// Which of the scanned batches or files, of which there are `pieces`, are not in an older version of the same
    /// columns. `None` if this version does not have all those of the older one, in the same order, or has both.
    /// `is_planned` if it has of files what their store told when they were listed.
    pub(crate) fn added_since(
        &self,
        older: &Self,
        pieces: usize,
        is_planned: bool,
    ) -> Option<Vec<bool>> {
        match (self, older) {
            (Self::Scans(now), Self::Scans(before)) => now.added_since(before, pieces, is_planned),
            _ => None,
        }
    }

    /// Whether both are the same version of the same data.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Arrays(a), Self::Arrays(b)) => same_arrays(a, b),
            (Self::Scans(a), Self::Scans(b)) => a.matches(b),
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
            (Self::Stated(a), Self::Stated(b)) => a == b,
            _ => false,
        }
    }

    /// Whether this is the version of what was planned to be scanned, as far as that tells: of its files by what their
    /// store told when they were listed.
    pub(crate) fn matches_planned(&self, planned: &Self) -> bool {
        match (self, planned) {
            (Self::Scans(known), Self::Scans(planned)) => {
                let mut files = known.files.iter().zip(&planned.files);
                same_arrays(&known.columns, &planned.columns)
                    && known.stated == planned.stated
                    && known.files.len() == planned.files.len()
                    && files.all(|(known, planned)| known.is_as_planned(planned))
            }
            _ => false,
        }
    }

    /// The number of arrays, of files or of stated parts of an older version that this one begins with: all of them, in
    /// their order. `None` if it does not begin so, if the older version has none, or if it has both arrays and files.
    pub(crate) fn extends(&self, older: &Self) -> Option<usize> {
        let shared = match (self, older) {
            (Self::Arrays(new), Self::Arrays(old)) => leading(new, old, same_arrays)?,
            (Self::Scans(new), Self::Scans(old)) => {
                let arrays = leading(&new.columns, &old.columns, same_arrays)?;
                let files = leading(&new.files, &old.files, PartialEq::eq)?;
                match (arrays, files) {
                    (arrays, 0) if new.files.is_empty() => arrays,
                    (0, files) if new.columns.is_empty() => files,
                    _ => return None,
                }
            }
            (
                Self::Files { provider, files },
                Self::Files {
                    provider: old_provider,
                    files: old_files,
                },
            ) if std::ptr::addr_eq(provider.as_ptr(), old_provider.as_ptr()) => {
                leading(files, old_files, PartialEq::eq)?
            }
            (Self::Stated(new), Self::Stated(old)) => new.extends(old)?,
            _ => return None,
        };
        (shared > 0).then_some(shared)
    }

    /// The arrays, files or stated parts from this one on.
    pub(crate) fn span(&self, from: usize) -> Span {
        let arrays = |arrays: &[Weak<dyn Array>]| Span {
            pieces: arrays.len(),
            size: arrays
                .iter()
                .map(|array| array.upgrade().map_or(0, |array| array.len() as u64))
                .sum(),
        };
        let files = |files: &[FileVersion]| Span {
            pieces: files.len(),
            size: files.iter().map(|file| file.meta.size).sum(),
        };
        match self {
            Self::Arrays(all) => arrays(all.get(from..).unwrap_or_default()),
            Self::Scans(all) if all.files.is_empty() => {
                arrays(all.columns.get(from..).unwrap_or_default())
            }
            Self::Scans(ScannedData { files: all, .. }) | Self::Files { files: all, .. } => {
                files(all.get(from..).unwrap_or_default())
            }
            Self::Stated(version) => Span {
                pieces: version.parts().saturating_sub(from),
                size: version.rows_of(from, version.parts()),
            },
        }
    }

    /// Whether all that it is of exists.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Scans(scanned) => scanned.columns.iter().all(|a| a.strong_count() > 0),
            Self::Arrays(_) | Self::Files { .. } | Self::Stated(_) => self.is_alive(),
        }
    }

    /// Whether a table may still have this version: false once its data is dropped.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Arrays(arrays) => arrays.iter().all(|a| a.strong_count() > 0),
            Self::Scans(scanned) => scanned.is_alive(),
            Self::Files { provider, .. } => provider.strong_count() > 0,
            // Another provider object may state it.
            Self::Stated(_) => true,
        }
    }
}

/// The number of old items, if the new ones begin with all of them.
fn leading<T>(new: &[T], old: &[T], same: impl Fn(&[T], &[T]) -> bool) -> Option<usize> {
    let leading = new.get(..old.len())?;
    same(leading, old).then_some(old.len())
}

/// Whether these are the same arrays.
fn same_arrays(a: &[Weak<dyn Array>], b: &[Weak<dyn Array>]) -> bool {
    a.iter().map(address).eq(b.iter().map(address))
}

/// The address of an array. While there is a reference, no other array can have it.
fn address(array: &Weak<dyn Array>) -> *const () {
    array.as_ptr().cast()
}
