//! Indexes that have a name, by `CREATE INDEX`.

use datafusion_common::ResolvedTableReference;

use crate::common::column_ref::ColumnRef;

/// An index with a name: of one column, for range functions, or of the rows sorted by several, for range joins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedIndex {
    /// Its name, a table of the schema of indexes.
    pub name: String,
    /// The table.
    pub table: ResolvedTableReference,
    /// The columns in their order, the range key last.
    pub columns: Vec<String>,
}

impl NamedIndex {
    /// Whether both are of the same columns of the same table.
    pub fn is_of_same_columns(&self, other: &Self) -> bool {
        (&self.table, &self.columns) == (&other.table, &other.columns)
    }

    /// Whether it is that of this column alone.
    pub fn is_of(&self, column: &ColumnRef) -> bool {
        column.table_reference() == self.table && self.columns == [column.column.as_str()]
    }

    /// The table and columns as SQL names them.
    pub fn label(&self) -> String {
        format!("{} ({})", self.table.table, self.columns.join(", "))
    }
}
