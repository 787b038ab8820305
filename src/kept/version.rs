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

use crate::kept::identity::Identity;
use crate::kept::table_version::TableVersion;

/// The coarsest resolution of a file's times: two writes within one tick can have the same time. If a file was read
/// less than a tick after a change, a later change may be invisible.
const CLOCK_TICK: Duration = Duration::from_secs(2);

/// One version of what is scanned: of a table's column, or of all that a plan reads.
///
/// Its pieces are the batches of a table in memory, files, or the parts that a table states.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// Columns of batches in memory, which are immutable: the same arrays are the same values. The references are weak,
    /// so that the memory is freed with the table; while they exist, no other array can have the same address.
    columns: Arc<[Weak<dyn Array>]>,
    /// The number of columns of a batch; 0 if it is not the same for all.
    width: usize,
    files: Vec<FileVersion>,
    /// The time before the metadata of the files was requested.
    requested: SystemTime,
    /// The table provider that has listed the files, if it has to be the same.
    provider: Option<Weak<dyn TableProvider>>,
    /// As tables have stated them.
    stated: Vec<TableVersion>,
}

/// Consecutive pieces of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// Their number.
    pub(crate) pieces: usize,
    /// The rows of batches and of stated parts, the bytes of files.
    pub(crate) size: u64,
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
    fn is_settled_at(&self, time: SystemTime) -> bool {
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
        Self {
            columns: chunks.into_iter().map(Arc::downgrade).collect(),
            width: 1,
            files: vec![],
            requested: SystemTime::UNIX_EPOCH,
            provider: None,
            stated: vec![],
        }
    }

    /// The version of files, as listed by this table provider. Their metadata was requested after the time `requested`.
    pub(crate) fn from_files(
        provider: &Arc<dyn TableProvider>,
        files: Vec<FileVersion>,
        requested: SystemTime,
    ) -> Self {
        Self {
            files,
            requested,
            provider: Some(Arc::downgrade(provider)),
            ..Self::from_arrays([])
        }
    }

    /// The version that a table has stated.
    pub(crate) fn from_stated(version: TableVersion) -> Self {
        Self {
            stated: vec![version],
            ..Self::from_arrays([])
        }
    }

    /// The version of these columns of batches, of these files as they were when they were listed, and of tables that
    /// have stated these. `None` without any.
    pub(crate) fn from_scans<'a>(
        batches: impl IntoIterator<Item = (&'a RecordBatch, &'a [usize])>,
        files: Vec<FileVersion>,
        stated: Vec<TableVersion>,
    ) -> Option<Self> {
        let (mut columns, mut widths) = (vec![], vec![]);
        for (batch, read) in batches {
            columns.extend(
                read.iter()
                    .map(|column| Arc::downgrade(batch.column(*column))),
            );
            widths.push(read.len());
        }
        widths.dedup();
        let is_empty = columns.is_empty() && files.is_empty() && stated.is_empty();
        (!is_empty).then(|| Self {
            columns: columns.into(),
            width: if let [width] = widths[..] { width } else { 0 },
            files,
            stated,
            ..Self::from_arrays([])
        })
    }

    /// The same version with these files, whose metadata was requested after the time `requested`.
    pub(crate) fn with_files(self, files: Vec<FileVersion>, requested: SystemTime) -> Self {
        Self {
            files,
            requested,
            ..self
        }
    }

    /// Adds the first file, which all versions of a table have, to `identity`, and what tells this version from others
    /// in any process to `version`. `None` if it is not one of files alone.
    pub(crate) fn add_to(&self, identity: &mut Identity, version: &mut Identity) -> Option<()> {
        if !self.columns.is_empty() || !self.stated.is_empty() {
            return None;
        }
        for file in &self.files {
            file.add_to(version);
        }
        let (store, path) = self.files.first()?.path();
        identity.add_debug(&(store, path.as_ref()));
        // Another version of DataFusion may read or compute other values.
        version.add(datafusion::DATAFUSION_VERSION.as_bytes());
        Some(())
    }

    /// The files that a table provider has listed.
    pub(crate) fn listed_files(&self) -> Option<&[FileVersion]> {
        self.provider.as_ref().map(|_| self.files.as_slice())
    }

    /// Whether files are part of it, which may change while they are read.
    pub(crate) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether a change of its files since their metadata was requested would be visible.
    pub(crate) fn is_settled(&self) -> bool {
        let mut files = self.files.iter();
        files.all(|file| file.is_settled_at(self.requested))
    }

    /// Whether this may be a later version of what had another version: it has the first array, the first file and the
    /// first table of that.
    pub(crate) fn may_succeed(&self, other: &Self) -> bool {
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

    /// Whether both are the same version of the same data.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.is_of_same_provider(other)
            && same_arrays(&self.columns, &other.columns)
            && self.files == other.files
            && self.stated == other.stated
    }

    fn is_of_same_provider(&self, other: &Self) -> bool {
        match (&self.provider, &other.provider) {
            (Some(one), Some(other)) => std::ptr::addr_eq(one.as_ptr(), other.as_ptr()),
            (None, None) => true,
            _ => false,
        }
    }

    /// Whether this is the version of what was planned to be scanned, as far as that tells: of its files by what their
    /// store told when they were listed.
    pub(crate) fn matches_planned(&self, planned: &Self) -> bool {
        let mut files = self.files.iter().zip(&planned.files);
        same_arrays(&self.columns, &planned.columns)
            && self.stated == planned.stated
            && self.files.len() == planned.files.len()
            && files.all(|(known, planned)| known.is_as_planned(planned))
    }

    /// Which of the pieces are not in an older version of the same columns. `None` if this version does not have all
    /// those of the older one, in the same order, or has pieces of several kinds. `is_planned` if it has of files what
    /// their store told when they were listed.
    pub(crate) fn added_since(&self, older: &Self, is_planned: bool) -> Option<Vec<bool>> {
        if !self.is_of_same_provider(older) || self.width != older.width {
            return None;
        }
        let kinds = |version: &Self| {
            let stated = version.stated.len();
            (!version.columns.is_empty(), version.has_files(), stated)
        };
        match (kinds(self), kinds(older)) {
            ((true, false, 0), (true, false, 0)) if self.width > 0 => {
                let batches = self.columns.chunks(self.width);
                let old = older.columns.chunks(self.width);
                added(batches, old, |batch, old| same_arrays(old, batch))
            }
            ((false, true, 0), (false, true, 0)) => {
                let (files, old) = (self.files.iter(), older.files.iter());
                added(files, old, |file, old| {
                    old == file || is_planned && old.is_as_planned(file)
                })
            }
            ((false, false, 1), (false, false, 1)) => {
                let (now, before) = (&self.stated[0], &older.stated[0]);
                let added = || added(now.parts().iter(), before.parts().iter(), PartialEq::eq);
                now.is_of_table(before).then(added)?
            }
            _ => None,
        }
    }

    /// The number of pieces of an older version that this one begins with: all of them, in their order. `None` if it
    /// does not begin so, or if the older version has none.
    pub(crate) fn extends(&self, older: &Self) -> Option<usize> {
        let added = self.added_since(older, false)?;
        let shared = added.iter().filter(|is_added| !**is_added).count();
        (shared > 0 && added.is_sorted()).then_some(shared)
    }

    /// The rows of each batch or stated part, the bytes of each file.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let rows = |batch: &[Weak<dyn Array>]| {
            let column = batch.first().and_then(Weak::upgrade);
            column.map_or(0, |array| array.len() as u64)
        };
        let batches = self.columns.chunks(self.width.max(1)).map(rows);
        let files = self.files.iter().map(|file| file.meta.size);
        let parts = self.stated.iter().flat_map(TableVersion::parts);
        let parts = parts.map(|part| part.rows);
        batches.chain(files).chain(parts).collect()
    }

    /// The pieces from this one on.
    pub(crate) fn span(&self, from: usize) -> Span {
        let sizes = self.sizes();
        let sizes = sizes.get(from..).unwrap_or_default();
        Span {
            pieces: sizes.len(),
            size: sizes.iter().sum(),
        }
    }

    /// Whether all that it is of exists.
    pub(crate) fn is_whole(&self) -> bool {
        self.columns.iter().all(|a| a.strong_count() > 0)
    }

    /// Whether a table may still have this version: false once its data is dropped. Of arrays, the first and the last
    /// one are looked at: there may be many of many tables, which all queries would look at. Another provider object
    /// may state a version.
    pub(crate) fn is_alive(&self) -> bool {
        let mut ends = [self.columns.first(), self.columns.last()]
            .into_iter()
            .flatten();
        let provider = self.provider.as_ref();
        ends.all(|array| array.strong_count() > 0)
            && provider.is_none_or(|provider| provider.strong_count() > 0)
    }
}

/// Which of the new items are not among the old ones. `None` if they do not have all old ones, in the same order.
pub(crate) fn added<T>(
    new: impl Iterator<Item = T>,
    old: impl Iterator<Item = T>,
    same: impl Fn(&T, &T) -> bool,
) -> Option<Vec<bool>> {
    let mut left = old.peekable();
    let added = new.map(|item| left.next_if(|old| same(&item, old)).is_none());
    let added = added.collect();
    left.peek().is_none().then_some(added)
}

/// Whether these are the same arrays.
fn same_arrays(a: &[Weak<dyn Array>], b: &[Weak<dyn Array>]) -> bool {
    a.iter().map(address).eq(b.iter().map(address))
}

/// The address of an array. While there is a reference, no other array can have it.
fn address(array: &Weak<dyn Array>) -> *const () {
    array.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use arrow::array::Int32Array;
    use arrow::datatypes::Schema;
    use datafusion::datasource::MemTable;

    use super::*;

    fn file(name: &str, size: u64) -> FileVersion {
        let meta = ObjectMeta {
            location: Path::from(name),
            last_modified: SystemTime::UNIX_EPOCH.into(),
            size,
            e_tag: None,
            version: None,
        };
        FileVersion::new("s3://b/", meta, None)
    }

    /// Versions of these of three pieces, as arrays, files and stated parts.
    fn versions(
        pieces: &[usize],
        arrays: &[ArrayRef],
        table: &Arc<dyn TableProvider>,
    ) -> [Version; 4] {
        let of_arrays = Version::from_arrays(pieces.iter().map(|i| &arrays[*i]));
        let files = || {
            let files = pieces.iter().map(|i| file(&i.to_string(), 1 << i));
            files.collect::<Vec<_>>()
        };
        let of_files = Version::from_files(table, files(), SystemTime::UNIX_EPOCH);
        let scanned = Version::from_scans([], files(), vec![]).expect("files");
        let parts = pieces.iter().fold(TableVersion::new("t"), |version, i| {
            version.with_part([u8::try_from(*i).unwrap()], 1 << i)
        });
        [of_arrays, of_files, scanned, Version::from_stated(parts)]
    }

    #[test]
    fn pieces_are_added_to_a_version_of_the_same_kind() {
        let arrays = (0..3).map(|i| Arc::new(Int32Array::from(vec![0; 1 << i])) as ArrayRef);
        let arrays: Vec<ArrayRef> = arrays.collect();
        let table = || {
            let table = MemTable::try_new(Arc::new(Schema::empty()), vec![vec![]]).unwrap();
            Arc::new(table) as Arc<dyn TableProvider>
        };
        let (provider, other) = (table(), table());
        let of = |pieces: &[usize]| versions(pieces, &arrays, &provider);
        for (new, old, added, extends) in [
            (vec![0, 1, 2], vec![0, 1, 2], Some(vec![false; 3]), Some(3)),
            (
                vec![0, 1, 2],
                vec![0, 1],
                Some(vec![false, false, true]),
                Some(2),
            ),
            (
                vec![0, 2, 1],
                vec![0, 1],
                Some(vec![false, true, false]),
                None,
            ),
            (vec![1, 0], vec![0, 1], None, None),
            (vec![0, 1], vec![0, 1, 2], None, None),
            (vec![1, 2], vec![0], None, None),
        ] {
            for (i, now) in of(&new).iter().enumerate() {
                for (j, before) in of(&old).iter().enumerate() {
                    let case = format!("{new:?} after {old:?}, {i} after {j}");
                    let is_same = i == j && new == old;
                    assert_eq!(now.matches(before), is_same, "{case}");
                    let expected = added.clone().filter(|_| i == j);
                    assert_eq!(now.added_since(before, false), expected, "{case}");
                    assert_eq!(now.extends(before), extends.filter(|_| i == j), "{case}");
                }
                let span = Span {
                    pieces: new.len() - 1,
                    size: new[1..].iter().map(|i| 1 << i).sum(),
                };
                assert_eq!(now.span(1), span);
            }
        }
        let [_, of_files, ..] = of(&[0]);
        let [_, of_other, ..] = versions(&[0], &arrays, &other);
        assert!(!of_other.matches(&of_files) && of_other.extends(&of_files).is_none());
    }

    #[test]
    fn a_version_dies_with_its_data() {
        let table = MemTable::try_new(Arc::new(Schema::empty()), vec![vec![]]).unwrap();
        let table = Arc::new(table) as Arc<dyn TableProvider>;
        let arrays: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(vec![1]))];
        let of_tables = versions(&[0], &arrays, &table);
        assert!(of_tables.iter().all(Version::is_alive));
        drop((arrays, table));
        assert_eq!(of_tables.map(|v| v.is_alive()), [false, false, true, true]);
    }
}
