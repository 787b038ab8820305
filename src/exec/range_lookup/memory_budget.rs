//! Tells which indexes of columns fit in memory, before it is reserved for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool};

use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::options::ByteSize;
use rmq_arrow::common::ordered_type::is_ranked;
use rmq_arrow::index::key_index::KeyIndex;

/// The memory that indexes of columns may take.
pub(crate) struct MemoryBudget<'a> {
    pub(crate) catalog: &'a IndexCatalog,
    /// `rmq.index_memory_limit`.
    pub(crate) limit: ByteSize,
    pub(crate) pool: &'a Arc<dyn MemoryPool>,
}

impl MemoryBudget<'_> {
    /// Its bytes, whether they are in use or not.
    pub(crate) fn bytes(&self) -> usize {
        self.limit.0.min(self.pool_bytes())
    }

    fn pool_bytes(&self) -> usize {
        match self.pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes,
            MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
        }
    }

    /// Whether columns that are not read yet may fit together with their indexes: for each index the name, the type and
    /// the rows of its column. Strings are not counted, as their sizes are not known.
    pub(crate) fn may_fit<'c>(
        &self,
        indexes: impl Iterator<Item = (&'c str, &'c DataType, usize)>,
    ) -> bool {
        let (mut columns, mut index_bytes) = (BTreeMap::new(), 0);
        for (column, data_type, rows) in indexes.filter(|(_, t, _)| !is_ranked(t)) {
            columns.insert(column, rows * data_type.primitive_width().unwrap_or(0));
            index_bytes += KeyIndex::estimate_unread(rows, data_type);
        }
        let column_bytes: usize = columns.values().sum();
        column_bytes <= self.limit.0
            && index_bytes <= self.limit.0
            && self.is_free(column_bytes + index_bytes)
    }

    /// Whether indexes of this many bytes fit beside what has been read for them.
    pub(crate) fn fits(&self, index_bytes: usize) -> bool {
        index_bytes <= self.limit.0 && self.is_free(index_bytes)
    }

    /// Whether the pool has this many bytes for queries that run now. Evicts the least worthwhile indexes for it,
    /// unless the whole pool is smaller.
    fn is_free(&self, bytes: usize) -> bool {
        // Not counted as that of an index, which would make others fail meanwhile.
        let memory = MemoryConsumer::new("rmq column").register(self.pool);
        bytes <= self.pool_bytes() && self.catalog.grow(&memory, bytes).is_ok()
    }
}
