//! References to columns by name, `'catalog.schema.table.column'`, and their resolution in a session's catalogs.

use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use arrow::datatypes::FieldRef;
use datafusion_catalog::{CatalogProviderList, SchemaProvider, TableProvider};
use datafusion_common::config::ConfigOptions;
use datafusion_common::{
    Column, DFSchema, DataFusionError, ResolvedTableReference, Result, TableReference,
    exec_datafusion_err, plan_err,
};
use futures::FutureExt;

use crate::common::similar_names::did_you_mean;
use rmq_arrow::common::ordered_type::check_ordered;

/// A column of a registered table, with the table's full name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColumnRef {
    /// The catalog of the table.
    pub catalog: Arc<str>,
    /// The schema of the table.
    pub schema: Arc<str>,
    /// The name of the table.
    pub table: Arc<str>,
    /// The name of the column.
    pub column: String,
}

impl Display for ColumnRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, column, .. } = self;
        write!(f, "{table}.{column}")
    }
}

impl ColumnRef {
    /// The full name of the table.
    pub fn table_reference(&self) -> ResolvedTableReference {
        ResolvedTableReference {
            catalog: Arc::clone(&self.catalog),
            schema: Arc::clone(&self.schema),
            table: Arc::clone(&self.table),
        }
    }
}

/// The context in which names are resolved: the session's catalogs, its default catalog and schema, and whether
/// unquoted identifiers are folded to lower case.
///
/// The reference to the catalogs is weak: they may contain views whose plans contain functions that refer to this.
#[derive(Clone)]
pub struct Names {
    catalogs: Weak<dyn CatalogProviderList>,
    default_catalog: String,
    default_schema: String,
    fold_case: bool,
}

impl Names {
    /// The names of these catalogs, by the options of `config`.
    pub fn new(catalogs: &Arc<dyn CatalogProviderList>, config: &ConfigOptions) -> Self {
        Self::from_weak(Arc::downgrade(catalogs), config)
    }

    /// Returns the same catalogs with the options of `config`.
    pub fn with_config(&self, config: &ConfigOptions) -> Self {
        Self::from_weak(Weak::clone(&self.catalogs), config)
    }

    fn from_weak(catalogs: Weak<dyn CatalogProviderList>, config: &ConfigOptions) -> Self {
        Self {
            catalogs,
            default_catalog: config.catalog.default_catalog.clone(),
            default_schema: config.catalog.default_schema.clone(),
            fold_case: config.sql_parser.enable_ident_normalization,
        }
    }

    /// Parses the first argument of `function` by SQL's identifier rules.
    ///
    /// # Errors
    /// A planning error if the text is not `table.column`, qualified or quoted as needed.
    pub fn parse(&self, function: &str, text: &str) -> Result<ColumnRef> {
        let column = self.parse_column(text);
        let Some(table) = column.relation else {
            return plan_err!(
                "{function}: '{text}' does not name a column of a table: expected 'table.column', qualified and quoted as in SQL \
                 ('catalog.schema.\"My Table\".\"My Column\"')"
            );
        };
        let table = self.resolve(table);
        Ok(ColumnRef {
            catalog: table.catalog,
            schema: table.schema,
            table: table.table,
            column: column.name,
        })
    }

    /// Parses a column's name, qualified or not, by SQL's identifier rules.
    pub fn parse_column(&self, text: &str) -> Column {
        if self.fold_case {
            Column::from_qualified_name(text)
        } else {
            Column::from_qualified_name_ignore_case(text)
        }
    }

    /// Completes a table's name with the session's default catalog and schema.
    pub fn resolve(&self, table: TableReference) -> ResolvedTableReference {
        table.resolve(&self.default_catalog, &self.default_schema)
    }

    /// Parses a table's name by SQL's identifier rules.
    pub fn parse_table(&self, text: &str) -> ResolvedTableReference {
        self.resolve(TableReference::parse_str_normalized(text, !self.fold_case))
    }

    /// Returns the field of a column whose type has an order.
    ///
    /// # Errors
    /// A planning error for an unknown table or column, with similar names, and for a type without an order.
    pub fn field(&self, function: &str, name: &ColumnRef) -> Result<FieldRef> {
        let provider = self.table(function, &name.table_reference())?;
        let schema = provider.schema();
        let Ok(field) = schema.field_with_name(&name.column) else {
            let columns = DFSchema::try_from_qualified_schema(
                TableReference::bare(Arc::clone(&name.table)),
                &schema,
            )?;
            let table = Some(TableReference::bare(Arc::clone(&name.table)));
            return Err(
                datafusion_common::field_not_found(table, &name.column, &columns)
                    .context(format!("{function}: unknown column in '{name}'")),
            );
        };
        check_ordered(function, &name.to_string(), field.data_type())?;
        Ok(Arc::new(field.clone()))
    }

    /// Returns the provider of a table without waiting: names are resolved during logical planning, which is
    /// synchronous.
    ///
    /// # Errors
    /// A planning error for an unknown table, with similar names, and for a table that its schema has to wait for.
    pub fn table(
        &self,
        function: &str,
        table: &ResolvedTableReference,
    ) -> Result<Arc<dyn TableProvider>> {
        let catalogs = self.catalogs()?;
        match lookup(&catalogs, table).now_or_never() {
            Some(Ok(Some(provider))) => Ok(provider),
            Some(Ok(None)) => Err(unknown_table(function, table, &catalogs)),
            Some(Err(error)) => Err(error),
            None if !schema_of(&catalogs, table).is_some_and(|s| s.table_exist(&table.table)) => {
                Err(unknown_table(function, table, &catalogs))
            }
            None => plan_err!(
                "{function}: the schema '{}.{}' would have to wait for table '{}', which planning can't; register the table in a \
                 schema in memory, for example with CREATE EXTERNAL TABLE",
                table.catalog,
                table.schema,
                table.table
            ),
        }
    }

    /// Returns the provider of a table, during physical planning.
    ///
    /// # Errors
    /// A planning error for an unknown table, with similar names.
    pub async fn find_table(
        &self,
        function: &str,
        table: &ResolvedTableReference,
    ) -> Result<Arc<dyn TableProvider>> {
        let catalogs = self.catalogs()?;
        lookup(&catalogs, table)
            .await?
            .ok_or_else(|| unknown_table(function, table, &catalogs))
    }

    /// The session's catalogs.
    ///
    /// # Errors
    /// An execution error if they are gone.
    pub fn catalogs(&self) -> Result<Arc<dyn CatalogProviderList>> {
        self.catalogs.upgrade().ok_or_else(|| {
            exec_datafusion_err!(
                "the catalogs with which range functions were registered are gone; register them again after replacing a session's \
                 catalog list"
            )
        })
    }
}

fn schema_of(
    catalogs: &Arc<dyn CatalogProviderList>,
    table: &ResolvedTableReference,
) -> Option<Arc<dyn SchemaProvider>> {
    catalogs.catalog(&table.catalog)?.schema(&table.schema)
}

async fn lookup(
    catalogs: &Arc<dyn CatalogProviderList>,
    table: &ResolvedTableReference,
) -> Result<Option<Arc<dyn TableProvider>>> {
    match schema_of(catalogs, table) {
        Some(schema) => schema.table(&table.table).await,
        None => Ok(None),
    }
}

/// The error for an unknown table, with similar names.
fn unknown_table(
    function: &str,
    table: &ResolvedTableReference,
    catalogs: &Arc<dyn CatalogProviderList>,
) -> DataFusionError {
    let known = schema_of(catalogs, table).map(|schema| schema.table_names());
    let hint = did_you_mean(&table.table, known.unwrap_or_default());
    DataFusionError::Plan(format!("{function}: table '{table}' not found{hint}"))
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({}.{})", self.default_catalog, self.default_schema)
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.catalogs.as_ptr(), other.catalogs.as_ptr())
            && (&self.default_catalog, &self.default_schema, self.fold_case)
                == (
                    &other.default_catalog,
                    &other.default_schema,
                    other.fold_case,
                )
    }
}

impl Eq for Names {}

impl Hash for Names {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.default_catalog, &self.default_schema, self.fold_case).hash(state);
    }
}
