//! The table function `rmq_indexes()`: the indexes and the sorted rows that the session keeps, one row each, as of the
//! planning of the query.

use std::sync::Arc;

use arrow::array::{ArrayRef, DurationMillisecondArray, RecordBatch, StringArray, UInt64Array};
use datafusion::catalog::{MemTable, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, plan_err};

use crate::kept::catalog::{CachedIndexInfo, IndexCatalog};

/// The table function `rmq_indexes`.
#[derive(Debug)]
pub struct IndexesFunction {
    catalog: Arc<IndexCatalog>,
}

impl IndexesFunction {
    /// The name under which it is registered.
    pub const NAME: &'static str = "rmq_indexes";

    pub(crate) fn new(catalog: Arc<IndexCatalog>) -> Self {
        Self { catalog }
    }
}

impl TableFunctionImpl for IndexesFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        if !args.exprs().is_empty() {
            return plan_err!(
                "rmq_indexes takes no arguments, but {} were given",
                args.exprs().len()
            );
        }
        Ok(Arc::new(table_of(&self.catalog.list())?))
    }
}

/// These indexes as a table.
pub(crate) fn table_of(held: &[CachedIndexInfo]) -> Result<MemTable> {
    let strings = |f: &dyn Fn(&CachedIndexInfo) -> Option<String>| -> ArrayRef {
        Arc::new(held.iter().map(f).collect::<StringArray>())
    };
    let numbers = |f: &dyn Fn(&CachedIndexInfo) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(held.iter().map(f)))
    };
    let age = |h: &CachedIndexInfo| i64::try_from(h.age.as_millis()).unwrap_or(i64::MAX);
    let age: ArrayRef = Arc::new(DurationMillisecondArray::from_iter_values(
        held.iter().map(age),
    ));
    let columns = [
        ("name", strings(&|h| h.name.clone())),
        ("table", strings(&|h| h.table.clone())),
        ("column", strings(&|h| Some(h.column.clone()))),
        ("kind", strings(&|h| Some(h.kind?.name().to_string()))),
        ("type", strings(&|h| Some(h.data_type.to_string()))),
        ("rows", numbers(&|h| h.rows as u64)),
        ("bytes", numbers(&|h| h.bytes as u64)),
        ("device_bytes", numbers(&|h| h.device_bytes as u64)),
        ("engine", strings(&|h| Some(h.engine.clone()))),
        ("hits", numbers(&|h| h.hits)),
        ("age", age),
        ("disk", strings(&|h| h.disk.map(str::to_string))),
    ];
    let batch = RecordBatch::try_from_iter(columns)?;
    MemTable::try_new(batch.schema(), vec![vec![batch]])
}
