//! The schema whose tables are the indexes with names, so that any client can list, describe and drop them.

use std::fmt;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};

use crate::exec::create_index::Publisher;
use crate::kept::catalog::IndexCatalog;
use crate::table_functions::rmq_indexes::table_of;

/// A table that only the schema of indexes says it has: a session may wrap its schemas, as DataFusion's shell does, so
/// that their type does not tell.
const MARK: &str = "the schema of indexes of datafusion-rmq";

/// The indexes with names as tables: `SELECT * FROM rmq.name` describes one, `DROP TABLE rmq.name` drops it.
#[derive(Debug)]
pub(crate) struct IndexSchema {
    indexes: Weak<IndexCatalog>,
}

impl IndexSchema {
    fn names(&self) -> Vec<String> {
        let named = self.indexes.upgrade().map(|indexes| indexes.named());
        let named = named.unwrap_or_default().into_iter();
        named.map(|index| index.name).collect()
    }
}

#[async_trait]
impl SchemaProvider for IndexSchema {
    fn table_names(&self) -> Vec<String> {
        self.names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let Some(indexes) = self.indexes.upgrade() else {
            return Ok(None);
        };
        if !indexes.has_named(name) {
            return Ok(None);
        }
        let described = indexes.describe(name);
        Ok(Some(Arc::new(table_of(&described)?)))
    }

    fn register_table(
        &self,
        name: String,
        _table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        plan_err!(
            "the schema of indexes has no tables, so that {name} can't be created in it: write CREATE INDEX, or name another schema"
        )
    }

    /// DataFusion says of any error that there is no such table, so none is refused.
    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(indexes) = self.indexes.upgrade() else {
            return Ok(None);
        };
        let described = indexes.describe(name);
        if !indexes.drop_named(name) {
            return Ok(None);
        }
        Ok(Some(Arc::new(table_of(&described)?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        let is_named = |indexes: Arc<IndexCatalog>| indexes.has_named(name);
        name == MARK || self.indexes.upgrade().is_some_and(is_named)
    }
}

/// Adds the schema of indexes to a catalog, unless it is there.
pub(crate) struct SchemaOfIndexes {
    pub(crate) catalogs: Arc<dyn CatalogProviderList>,
    pub(crate) catalog: String,
    pub(crate) schema: String,
    pub(crate) indexes: Arc<IndexCatalog>,
}

impl fmt::Debug for SchemaOfIndexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SchemaOfIndexes({}.{})", self.catalog, self.schema)
    }
}

impl Publisher for SchemaOfIndexes {
    fn publish(&self) -> Result<()> {
        let Self {
            catalog, schema, ..
        } = self;
        let Some(provider) = self.catalogs.catalog(catalog) else {
            return exec_err!("there is no catalog {catalog} for the schema of indexes");
        };
        match provider.schema(schema) {
            None => {
                let indexes = Arc::downgrade(&self.indexes);
                provider.register_schema(schema, Arc::new(IndexSchema { indexes }))?;
                Ok(())
            }
            Some(known) if known.table_exist(MARK) => Ok(()),
            Some(_) => exec_err!(
                "{catalog}.{schema} is a schema of tables, and the names of indexes need a schema of their own: SET \
                 rmq.index_schema to the name of another one"
            ),
        }
    }
}
