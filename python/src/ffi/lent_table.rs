//! A table that a session of the package `datafusion` lends.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::datasource::ViewTable;
use datafusion_ffi::table_provider::ForeignTableProvider;
use pyo3::prelude::*;

use crate::shared::Frames;

/// A table of another session.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct LentTable {
    table: Arc<dyn TableProvider>,
    /// The tables that range functions of a view name.
    named: Frames,
}

#[pymethods]
impl LentTable {
    /// Whether it is a definition, from which this library reads the table, so that it can be used until the
    /// definition changes.
    #[getter]
    fn is_definition(&self) -> bool {
        !self.table.is::<ForeignTableProvider>() && !self.table.is::<ViewTable>()
    }
}

impl LentTable {
    pub fn new(table: Arc<dyn TableProvider>, named: Frames) -> Self {
        Self { table, named }
    }

    /// The table by a name of these parts, and those that it needs.
    pub fn frames(&self, parts: Vec<String>) -> Result<Frames> {
        let name = match <[String; 1]>::try_from(parts) {
            Ok([table]) => TableReference::bare(table),
            Err(parts) => match <[String; 2]>::try_from(parts) {
                Ok([schema, table]) => TableReference::partial(schema, table),
                Err(parts) => match <[String; 3]>::try_from(parts) {
                    Ok([catalog, schema, table]) => TableReference::full(catalog, schema, table),
                    Err(parts) => return plan_err!("no table has the name {}", parts.join(".")),
                },
            },
        };
        let mut frames = self.named.clone();
        frames.push((name, Arc::clone(&self.table)));
        Ok(frames)
    }
}
