//! What a table provider states about the version of its data, for tables that are neither in memory nor of files.

use std::any::{TypeId, type_name};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::TableProvider;
use datafusion::physical_plan::ExecutionPlan;

/// A table provider that states the version of its rows, so that indexes of its columns are kept between queries.
///
/// Snapshots of Delta Lake, Iceberg and Lance are such versions. The session finds the trait once its type is
/// registered with [`register_versioned`](crate::register_versioned).
///
/// An index that is used for other rows than its own gives wrong answers, so an implementation has to ensure that:
///
/// - A scan returns the rows of the version that was stated when it was planned, whatever happens to the table later.
/// - A scan of all rows with `target_partitions = 1` returns them in the order of the version's parts, partition after
///   partition, and of one version always in the same order. Positions count them so.
/// - Equal versions have equal rows: see [`TableVersion`].
pub trait VersionedTable: TableProvider {
    /// The version of the rows that a scan that is planned now returns; `None` if it is not known. Called several times
    /// for each query that uses positions of the table, so it should not ask a store.
    fn version(&self) -> Option<TableVersion>;

    /// Whether scans with the same filters and `target_partitions` return the rows of a version in the same partitions
    /// and in the same order each time: no partition takes files from another, say. Otherwise the sorted rows of a
    /// range join are not kept if its result depends on the order of rows with equal keys, nor can CREATE INDEX name
    /// them.
    fn repeats_order(&self) -> bool {
        false
    }

    /// A plan of the rows of these parts alone, which are given by their ids. `scan` is a plan that a scan of this
    /// table has returned, perhaps of an older version: the same columns are read, and the same filters applied. Where
    /// it is a scan of files, [`scan_of_files`](crate::scan_of_files) makes the plan.
    ///
    /// Of rows that are appended, only these are read then. A table with such plans promises that they, and all its
    /// scans that repeat the order, return the rows in the order of the parts, partition after partition. Rows that are
    /// kept of a scan in other partitions are sorted anew, so scans should have as many for few parts as for many.
    ///
    /// `None`, always, if the table has no such plans. Then range functions read all rows and index those that are
    /// added, and range joins sort all rows anew.
    fn scan_of_parts(
        &self,
        _scan: &Arc<dyn ExecutionPlan>,
        _parts: &[&[u8]],
    ) -> Option<Arc<dyn ExecutionPlan>> {
        None
    }
}

/// One version of a table's rows: parts that never change, such as files or snapshots, in the order of a scan.
///
/// Two versions are equal if they are of the same table and have the same parts. One that has all parts of an older one
/// and then others extends it: only the rows of these are indexed. A table that knows no parts has a single one, whose
/// id is that of the snapshot.
///
/// ```
/// use datafusion_rmq::TableVersion;
///
/// let before = TableVersion::new("2b1c7a0e").with_part("0001.parquet", 5_000);
/// let after = before.clone().with_part("0002.parquet", 200);
/// assert_eq!((after.rows(), after == before), (5_200, false));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct TableVersion {
    table: Arc<[u8]>,
    parts: Vec<VersionPart>,
}

/// Rows that never change.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct VersionPart {
    id: Arc<[u8]>,
    pub(crate) rows: u64,
}

impl TableVersion {
    /// A version without rows of the table with this id, which no other table has: not one of the same name in another
    /// catalog, and not one that is created under its name after it was dropped. A UUID is such an id, or a location
    /// that is used once.
    pub fn new(table: impl Into<Vec<u8>>) -> Self {
        Self {
            table: Arc::from(table.into()),
            parts: vec![],
        }
    }

    /// The version with the rows of one more part after its own.
    ///
    /// `id` tells the part from all others that the table ever has: one with other rows, or with the same in another
    /// order, has another id. Where rows of a file are deleted, what tells which belongs to the id.
    #[must_use]
    pub fn with_part(mut self, id: impl Into<Vec<u8>>, rows: u64) -> Self {
        let id = Arc::from(id.into());
        self.parts.push(VersionPart { id, rows });
        self
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// The parts, in the order of a scan.
    pub(crate) fn parts(&self) -> &[VersionPart] {
        &self.parts
    }

    /// Whether both are versions of the same table.
    pub(crate) fn is_of_table(&self, other: &Self) -> bool {
        self.table == other.table
    }
}

impl fmt::Debug for TableVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableVersion")
            .field("table", &String::from_utf8_lossy(&self.table))
            .field("parts", &self.parts.len())
            .field("rows", &self.rows())
            .finish()
    }
}

/// A table in a version that it has stated.
#[derive(Debug, Clone)]
pub(crate) struct StatedTable {
    table: Arc<dyn TableProvider>,
    known: VersionedType,
    pub(crate) version: TableVersion,
}

impl StatedTable {
    /// Whether the table has this version now.
    pub(crate) fn is_present(&self) -> bool {
        (self.known.version)(self.table.as_ref()).as_ref() == Some(&self.version)
    }

    /// Whether scans of the table repeat the order of its rows.
    pub(crate) fn repeats_order(&self) -> bool {
        (self.known.repeats_order)(self.table.as_ref())
    }

    /// The plan of the parts of this version whose numbers `is_read` selects, made of a scan of it.
    pub(crate) fn scan_of_parts(
        &self,
        scan: &Arc<dyn ExecutionPlan>,
        is_read: &dyn Fn(usize) -> bool,
    ) -> Option<Arc<dyn ExecutionPlan>> {
        let parts = self.version.parts.iter().enumerate();
        let parts = parts.filter(|(number, _)| is_read(*number));
        let ids: Vec<&[u8]> = parts.map(|(_, part)| part.id.as_ref()).collect();
        let plan = (self.known.scan_of_parts)(self.table.as_ref(), scan, &ids)?;
        (plan.schema() == scan.schema()).then_some(plan)
    }
}

/// The types of table providers that state versions. A `TableProvider` can only be asked for its own type, not for a
/// trait.
#[derive(Default)]
pub(crate) struct VersionedTypes(Mutex<Vec<VersionedType>>);

#[derive(Clone, Copy)]
struct VersionedType {
    id: TypeId,
    name: &'static str,
    version: fn(&dyn TableProvider) -> Option<TableVersion>,
    repeats_order: fn(&dyn TableProvider) -> bool,
    scan_of_parts: ScanOfParts,
}

type ScanOfParts =
    fn(&dyn TableProvider, &Arc<dyn ExecutionPlan>, &[&[u8]]) -> Option<Arc<dyn ExecutionPlan>>;

impl fmt::Debug for VersionedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl VersionedTypes {
    /// Adds a type.
    pub(crate) fn add<T: VersionedTable>(&self) {
        let added = VersionedType {
            id: TypeId::of::<T>(),
            name: type_name::<T>(),
            version: |table| table.downcast_ref::<T>()?.version(),
            repeats_order: |table| table.downcast_ref::<T>().is_some_and(T::repeats_order),
            scan_of_parts: |table, scan, parts| {
                table.downcast_ref::<T>()?.scan_of_parts(scan, parts)
            },
        };
        let mut types = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if types.iter().all(|known| known.id != added.id) {
            types.push(added);
        }
    }

    /// A table in the version that it states now.
    pub(crate) fn stated(&self, table: &Arc<dyn TableProvider>) -> Option<StatedTable> {
        let types = self.types().into_iter();
        let mut stated = types.filter_map(|known| {
            Some(StatedTable {
                version: (known.version)(table.as_ref())?,
                table: Arc::clone(table),
                known,
            })
        });
        stated.next()
    }

    /// A copy, so that no lock is held while a provider is called.
    fn types(&self) -> Vec<VersionedType> {
        let types = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        types.clone()
    }
}

impl fmt::Debug for VersionedTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.types()).finish()
    }
}
