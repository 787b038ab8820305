//! Connections of the ADBC driver: statements, and what there is in the session.

use std::collections::HashSet;
use std::sync::Arc;

use adbc_core::constants::ADBC_VERSION_1_1_0;
use adbc_core::error::{Result, Status};
use adbc_core::options::{InfoCode, ObjectDepth, OptionConnection, OptionValue};
use adbc_core::schemas::{GET_INFO_SCHEMA, GET_TABLE_TYPES_SCHEMA};
use adbc_core::{Connection, Optionable};
use arrow::array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray, UInt32Array, UnionArray, new_empty_array,
};
use arrow::datatypes::{DataType, Schema};
use datafusion::DATAFUSION_VERSION;
use datafusion::common::TableReference;

use super::errors::{block_on, error, from_datafusion, not_implemented};
use super::objects::{ObjectFilter, TABLE_TYPES, objects};
use super::options::{text, unknown};
use super::statement::RmqStatement;
use crate::shared::Shared;

type Reader = Box<dyn RecordBatchReader + Send + 'static>;

pub struct RmqConnection {
    shared: Arc<Shared>,
}

impl RmqConnection {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

fn reader(batch: RecordBatch) -> Reader {
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

impl Connection for RmqConnection {
    type StatementType = RmqStatement;

    fn new_statement(&mut self) -> Result<RmqStatement> {
        Ok(RmqStatement::new(Arc::clone(&self.shared)))
    }

    fn get_info(&self, codes: Option<HashSet<InfoCode>>) -> Result<Reader> {
        Ok(reader(info(codes.as_ref())?))
    }

    fn get_objects(
        &self,
        depth: ObjectDepth,
        catalog: Option<&str>,
        db_schema: Option<&str>,
        table_name: Option<&str>,
        table_type: Option<Vec<&str>>,
        column_name: Option<&str>,
    ) -> Result<Reader> {
        let owned = |text: Option<&str>| text.map(str::to_string);
        let filter = ObjectFilter {
            depth,
            catalog: owned(catalog),
            schema: owned(db_schema),
            table: owned(table_name),
            types: table_type.map(|types| types.into_iter().map(str::to_string).collect()),
            column: owned(column_name),
        };
        let shared = Arc::clone(&self.shared);
        let found = block_on(async move {
            let _shared = shared.names.read().await;
            let found = objects(&shared.ctx, &filter).await;
            found.map_err(from_datafusion)
        });
        found.map(reader)
    }

    fn get_table_schema(
        &self,
        catalog: Option<&str>,
        db_schema: Option<&str>,
        table_name: &str,
    ) -> Result<Schema> {
        let config = self.shared.ctx.copied_config();
        let defaults = &config.options().catalog;
        let catalog = catalog.unwrap_or(&defaults.default_catalog);
        let schema = db_schema.unwrap_or(&defaults.default_schema);
        let name = TableReference::full(catalog, schema, table_name);
        let shared = Arc::clone(&self.shared);
        block_on(async move {
            let _shared = shared.names.read().await;
            let found = shared.ctx.table_exist(name.clone());
            if !found.map_err(from_datafusion)? {
                return Err(error(Status::NotFound, format!("there is no table {name}")));
            }
            let table = shared.ctx.table_provider(name).await;
            let schema = table.map_err(from_datafusion)?.schema();
            Ok(Schema::clone(&schema))
        })
    }

    fn get_table_types(&self) -> Result<Reader> {
        let types: ArrayRef = Arc::new(StringArray::from(TABLE_TYPES.to_vec()));
        let batch = RecordBatch::try_new(Arc::clone(&GET_TABLE_TYPES_SCHEMA), vec![types]);
        Ok(reader(batch.map_err(|e| from_datafusion(e.into()))?))
    }

    fn get_statistic_names(&self) -> Result<Reader> {
        Err(not_implemented("statistics"))
    }

    fn get_statistics(
        &self,
        _: Option<&str>,
        _: Option<&str>,
        _: Option<&str>,
        _: bool,
    ) -> Result<Reader> {
        Err(not_implemented("statistics"))
    }

    fn commit(&mut self) -> Result<()> {
        let text = "each statement is committed when it is done";
        Err(error(Status::InvalidState, text))
    }

    fn rollback(&mut self) -> Result<()> {
        let text = "there are no transactions, so nothing can be rolled back";
        Err(error(Status::InvalidState, text))
    }

    fn read_partition(&self, _: impl AsRef<[u8]>) -> Result<Reader> {
        Err(not_implemented("partitioned results"))
    }
}

impl Optionable for RmqConnection {
    type Option = OptionConnection;

    fn set_option(&mut self, key: OptionConnection, value: OptionValue) -> Result<()> {
        let value = text(key.as_ref(), value)?;
        match (&key, value.as_str()) {
            (OptionConnection::AutoCommit, "true") | (OptionConnection::ReadOnly, "false") => {
                Ok(())
            }
            (OptionConnection::AutoCommit, _) => Err(not_implemented("transactions")),
            _ => Err(not_implemented(&format!("{}={value}", key.as_ref()))),
        }
    }

    fn get_option_string(&self, key: OptionConnection) -> Result<String> {
        let config = self.shared.ctx.copied_config();
        let defaults = &config.options().catalog;
        match key {
            OptionConnection::AutoCommit => Ok("true".to_string()),
            OptionConnection::ReadOnly => Ok("false".to_string()),
            OptionConnection::CurrentCatalog => Ok(defaults.default_catalog.clone()),
            OptionConnection::CurrentSchema => Ok(defaults.default_schema.clone()),
            _ => Err(unknown(&key)),
        }
    }

    fn get_option_bytes(&self, key: OptionConnection) -> Result<Vec<u8>> {
        Err(unknown(&key))
    }

    fn get_option_int(&self, key: OptionConnection) -> Result<i64> {
        Err(unknown(&key))
    }

    fn get_option_double(&self, key: OptionConnection) -> Result<f64> {
        Err(unknown(&key))
    }
}

/// What the driver says of itself, as far as it is asked for.
fn info(codes: Option<&HashSet<InfoCode>>) -> Result<RecordBatch> {
    let texts = [
        (InfoCode::VendorName, "DataFusion"),
        (InfoCode::VendorVersion, DATAFUSION_VERSION),
        (InfoCode::DriverName, "datafusion_rmq"),
        (InfoCode::DriverVersion, env!("CARGO_PKG_VERSION")),
    ];
    let flags = [
        (InfoCode::VendorSql, true),
        (InfoCode::VendorSubstrait, false),
    ];
    let numbers = [(InfoCode::DriverAdbcVersion, i64::from(ADBC_VERSION_1_1_0))];
    let asked = |code: &InfoCode| codes.is_none_or(|codes| codes.contains(code));
    // Of each code, the child of the union that has its value, and the value's place there.
    let (mut names, mut children, mut places) = (vec![], vec![], vec![]);
    let mut add = |code: InfoCode, child: i8, place: usize| {
        names.push(u32::from(&code));
        children.push(child);
        // There are a handful.
        places.push(i32::try_from(place).unwrap_or(i32::MAX));
    };
    let (mut strings, mut bools, mut integers) = (vec![], vec![], vec![]);
    for (code, value) in texts.into_iter().filter(|(code, _)| asked(code)) {
        add(code, 0, strings.len());
        strings.push(value);
    }
    for (code, value) in flags.into_iter().filter(|(code, _)| asked(code)) {
        add(code, 1, bools.len());
        bools.push(value);
    }
    for (code, value) in numbers.into_iter().filter(|(code, _)| asked(code)) {
        add(code, 2, integers.len());
        integers.push(value);
    }
    let made = || {
        let schema = Arc::clone(&GET_INFO_SCHEMA);
        let DataType::Union(fields, _) = schema.field(1).data_type() else {
            unreachable!("ADBC's schema has a union");
        };
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(strings)),
            Arc::new(BooleanArray::from(bools)),
            Arc::new(Int64Array::from(integers)),
        ];
        let others = fields.iter().skip(arrays.len());
        arrays.extend(others.map(|(_, field)| new_empty_array(field.data_type())));
        let values =
            UnionArray::try_new(fields.clone(), children.into(), Some(places.into()), arrays)?;
        let names = Arc::new(UInt32Array::from(names));
        RecordBatch::try_new(schema, vec![names, Arc::new(values)])
    };
    made().map_err(|found| from_datafusion(found.into()))
}
