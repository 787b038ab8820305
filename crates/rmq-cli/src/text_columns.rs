//! Columns as text, for what CSV has no notation: lists, and NULL.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;
use datafusion::config;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::PrintOptions;

/// Converts columns of results in CSV and TSV, which have neither lists nor a NULL that differs from an empty text.
pub struct TextColumns {
    is_text: bool,
    null: Option<String>,
    format: config::FormatOptions,
}

impl TextColumns {
    /// With `null`, NULL is this text in all columns.
    pub fn new(print: &PrintOptions, null: Option<String>, format: &config::FormatOptions) -> Self {
        Self {
            is_text: matches!(print.format, PrintFormat::Csv | PrintFormat::Tsv),
            null,
            format: format.clone(),
        }
    }

    fn converts(&self, field: &Field) -> bool {
        self.is_text && (field.data_type().is_nested() || self.null.is_some())
    }

    /// The schema of what [`Self::convert`] returns.
    pub fn schema(&self, schema: &SchemaRef) -> SchemaRef {
        let fields = schema.fields().iter().map(|field| {
            if self.converts(field) {
                Arc::new(Field::new(field.name(), DataType::Utf8, true))
            } else {
                Arc::clone(field)
            }
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// # Errors
    /// If a value cannot be shown.
    pub fn convert(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let schema = batch.schema();
        if !schema.fields().iter().any(|field| self.converts(field)) {
            return Ok(batch.clone());
        }
        let columns = schema.fields().iter().zip(batch.columns());
        let columns = columns.map(|(field, column)| {
            if self.converts(field) {
                self.text(column)
            } else {
                Ok(Arc::clone(column))
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(self.schema(&schema), columns)?)
    }

    fn text(&self, column: &ArrayRef) -> Result<ArrayRef> {
        let options: FormatOptions = (&self.format).try_into()?;
        let shown = ArrayFormatter::try_new(column, &options)?;
        let rows = (0..column.len()).map(|row| match &self.null {
            null if column.is_null(row) => Ok(null.clone()),
            _ => Ok(Some(shown.value(row).try_to_string()?)),
        });
        Ok(Arc::new(rows.collect::<Result<StringArray>>()?))
    }
}
