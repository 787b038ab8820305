//! What a session keeps between queries: indexes of columns, for range functions, and sorted rows, for range joins.
//!
//! Both live the same life ([`Kept`](entries::Kept)):
//!
//! 1. A key tells which rows of what is scanned they are of, and a [`Version`](version::Version) that these are as they
//!    were: the same arrays, files, or parts that a table states (`table_version`).
//! 2. The [`IndexCatalog`](catalog::IndexCatalog) finds what has the key and the version. Nothing else is used.
//! 3. If pieces were added to a version, what is kept stays, and only the rows of these are read, as a further part
//!    (`growth`).
//! 4. What is built is kept in the place of what it succeeds, within `rmq.index_memory_limit`; what saves least for its
//!    memory is evicted first (`entries`). Memory is reserved for an index before it is built (`reserved_index`). What
//!    no query uses gives way to operators in the session's memory pool (`giving_pool`).
//! 5. CREATE INDEX gives it a name, and it is not evicted (`named_index`).
//! 6. With `rmq.index_directory` it is in files, too, where the next process finds it (`index_file`, `on_disk`).
//!
//! Tables in memory are scanned by plans that several queries share (`memory_scans`).
//!
//! `pruned_reads` counts what queries read of rows that are not kept, until it is worth keeping all of them.
//! `ready_index` is an index as a query uses it.

pub(crate) mod catalog;
pub(crate) mod entries;
pub(crate) mod giving_pool;
pub(crate) mod growth;
pub(crate) mod identity;
pub(crate) mod index_file;
pub(crate) mod memory_scans;
pub(crate) mod on_disk;
pub(crate) mod pruned_reads;
pub(crate) mod ready_index;
pub(crate) mod reserved_index;
pub(crate) mod table_version;
pub(crate) mod version;
