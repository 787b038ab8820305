//! The catalogs, schemas, tables and columns of a session, as ADBC nests them.

use std::sync::Arc;

use adbc_core::options::ObjectDepth;
use adbc_core::schemas::GET_OBJECTS_SCHEMA;
use arrow::array::{
    ArrayRef, Int32Array, ListArray, RecordBatch, StringArray, StructArray, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::kernels::comparison::like;
use arrow::datatypes::{DataType, Fields};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::TableType;
use datafusion::prelude::SessionContext;

/// The types of tables.
pub const TABLE_TYPES: [&str; 3] = ["BASE TABLE", "VIEW", "LOCAL TEMPORARY"];

/// What is asked for: the deepest level, and patterns of LIKE for the names on each level.
pub struct ObjectFilter {
    pub depth: ObjectDepth,
    pub catalog: Option<String>,
    pub schema: Option<String>,
    pub table: Option<String>,
    pub types: Option<Vec<String>>,
    pub column: Option<String>,
}

impl ObjectFilter {
    /// Whether a level is asked for: 1 has schemas, 2 tables, 3 columns.
    fn reaches(&self, level: usize) -> bool {
        let deepest = match self.depth {
            ObjectDepth::Catalogs => 0,
            ObjectDepth::Schemas => 1,
            ObjectDepth::Tables => 2,
            ObjectDepth::All | ObjectDepth::Columns => 3,
        };
        level <= deepest
    }
}

/// One level of the result, from above: names, and of each the number of those on the next level.
#[derive(Default)]
struct Level {
    names: Vec<String>,
    children: Vec<usize>,
}

impl Level {
    fn add(&mut self, name: String, children: usize) {
        self.names.push(name);
        self.children.push(children);
    }
}

pub async fn objects(ctx: &SessionContext, filter: &ObjectFilter) -> Result<RecordBatch> {
    let [mut catalogs, mut schemas, mut tables, mut columns] = [(); 4].map(|()| Level::default());
    let (mut types, mut positions, mut column_types) = (vec![], vec![], vec![]);
    for catalog_name in matching(ctx.catalog_names(), filter.catalog.as_deref())? {
        let first_schema = schemas.names.len();
        let catalog = ctx.catalog(&catalog_name).filter(|_| filter.reaches(1));
        let names = catalog.as_ref().map(|catalog| catalog.schema_names());
        for schema_name in matching(names.unwrap_or_default(), filter.schema.as_deref())? {
            let first_table = tables.names.len();
            let schema = catalog.as_ref().and_then(|c| c.schema(&schema_name));
            let schema = schema.filter(|_| filter.reaches(2));
            let names = schema.as_ref().map(|schema| schema.table_names());
            for table_name in matching(names.unwrap_or_default(), filter.table.as_deref())? {
                let found = match &schema {
                    Some(schema) => schema.table(&table_name).await?,
                    None => None,
                };
                // Another thread may have dropped it.
                let Some(table) = found else { continue };
                let kind = match table.table_type() {
                    TableType::Base => TABLE_TYPES[0],
                    TableType::View => TABLE_TYPES[1],
                    TableType::Temporary => TABLE_TYPES[2],
                };
                let asked = filter.types.as_ref();
                if !asked.is_none_or(|types| types.iter().any(|one| one == kind)) {
                    continue;
                }
                let first_column = columns.names.len();
                let fields = table.schema();
                let names = fields.fields().iter().map(|field| field.name().clone());
                let names: Vec<String> = names.filter(|_| filter.reaches(3)).collect();
                for name in matching(names, filter.column.as_deref())? {
                    let (place, field) = fields.column_with_name(&name).map_or_else(
                        || internal_err!("column {name} of {table_name} is gone"),
                        Ok,
                    )?;
                    positions.push(i32::try_from(place + 1).unwrap_or(i32::MAX));
                    column_types.push(field.data_type().to_string());
                    columns.add(name, 0);
                }
                types.push(kind);
                tables.add(table_name, columns.names.len() - first_column);
            }
            schemas.add(schema_name, tables.names.len() - first_table);
        }
        catalogs.add(catalog_name, schemas.names.len() - first_schema);
    }

    let of_catalog = GET_OBJECTS_SCHEMA.fields();
    let of_schema = item_fields(of_catalog, "catalog_db_schemas")?;
    let of_table = item_fields(of_schema, "db_schema_tables")?;
    let of_column = item_fields(of_table, "table_columns")?;
    let columns = structs(
        of_column,
        columns.names.len(),
        vec![
            ("column_name", strings(&columns.names)),
            ("ordinal_position", Arc::new(Int32Array::from(positions))),
            ("xdbc_type_name", strings(&column_types)),
        ],
    )?;
    let table_columns = lists(
        of_table,
        "table_columns",
        &tables,
        columns,
        filter.reaches(3),
    )?;
    let tables = structs(
        of_table,
        tables.names.len(),
        vec![
            ("table_name", strings(&tables.names)),
            ("table_type", Arc::new(StringArray::from(types))),
            ("table_columns", table_columns),
        ],
    )?;
    let of_these = (of_schema, "db_schema_tables");
    let schema_tables = lists(of_these.0, of_these.1, &schemas, tables, filter.reaches(2))?;
    let schemas = structs(
        of_schema,
        schemas.names.len(),
        vec![
            ("db_schema_name", strings(&schemas.names)),
            ("db_schema_tables", schema_tables),
        ],
    )?;
    let of_these = (of_catalog, "catalog_db_schemas");
    let catalog_schemas = lists(
        of_these.0,
        of_these.1,
        &catalogs,
        schemas,
        filter.reaches(1),
    )?;
    let rows = vec![strings(&catalogs.names), catalog_schemas];
    Ok(RecordBatch::try_new(Arc::clone(&GET_OBJECTS_SCHEMA), rows)?)
}

/// The names that match a pattern of LIKE.
fn matching(names: Vec<String>, pattern: Option<&str>) -> Result<Vec<String>> {
    let Some(pattern) = pattern else {
        return Ok(names);
    };
    let matches = like(
        &StringArray::from_iter_values(&names),
        &StringArray::new_scalar(pattern),
    )?;
    let kept = names.into_iter().zip(&matches);
    Ok(kept
        .filter(|(_, kept)| *kept == Some(true))
        .map(|(name, _)| name)
        .collect())
}

fn strings<T: AsRef<str>>(texts: &[T]) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(texts))
}

/// The fields of the items of a column, which is a list of structures.
fn item_fields<'a>(fields: &'a Fields, column: &str) -> Result<&'a Fields> {
    if let Some((_, field)) = fields.find(column)
        && let DataType::List(item) = field.data_type()
        && let DataType::Struct(fields) = item.data_type()
    {
        return Ok(fields);
    }
    internal_err!("{column} is no list of structures")
}

/// Structures with the columns that are known, and NULL in the others.
fn structs(fields: &Fields, len: usize, known: Vec<(&str, ArrayRef)>) -> Result<ArrayRef> {
    let columns = fields.iter().map(|field| {
        let column = known.iter().find(|(name, _)| name == field.name());
        column.map_or_else(
            || new_null_array(field.data_type(), len),
            |(_, c)| Arc::clone(c),
        )
    });
    let columns = columns.collect();
    Ok(Arc::new(StructArray::try_new_with_length(
        fields.clone(),
        columns,
        None,
        len,
    )?))
}

/// The items of each row above, or NULL where the level is not asked for.
fn lists(
    fields: &Fields,
    column: &str,
    above: &Level,
    items: ArrayRef,
    reached: bool,
) -> Result<ArrayRef> {
    if let Some((_, field)) = fields.find(column)
        && let DataType::List(item) = field.data_type()
    {
        if !reached {
            return Ok(new_null_array(field.data_type(), above.names.len()));
        }
        let offsets = OffsetBuffer::from_lengths(above.children.iter().copied());
        return Ok(Arc::new(ListArray::try_new(
            Arc::clone(item),
            offsets,
            items,
            None,
        )?));
    }
    internal_err!("{column} is no list")
}
