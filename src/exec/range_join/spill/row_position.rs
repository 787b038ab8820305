//! The position of a row in the input of the build side.

/// Orders the rows of the build side: partition after partition, and by position within each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowPosition {
    pub(crate) partition: usize,
    /// The number of rows before it in the partition.
    pub(crate) row: u64,
}

impl RowPosition {
    /// The position `rows` rows later in the same partition.
    pub(crate) fn after(self, rows: usize) -> Self {
        Self {
            row: self.row + rows as u64,
            ..self
        }
    }
}
