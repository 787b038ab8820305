//! The tables that queries are drawn over: columns of random types with and without NOT NULL, with ties and NULLs, in
//! memory or in Parquet files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::MemTable;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use rmq_testing::Random;

use super::print::literal;
use super::value::{DAY, Kind, SECOND, Value};

/// A column as an expression sees it.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: Arc<str>,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub struct Table {
    pub columns: Vec<Column>,
    types: Vec<DataType>,
    nullable: Vec<bool>,
    pub rows: Vec<Arc<[Value]>>,
    storage: Storage,
}

#[derive(Debug, Clone)]
enum Storage {
    /// The rows of each partition, and of each of its batches.
    Memory { partitions: usize, batch: usize },
    /// Whether the file has statistics, and the rows of a row group.
    Parquet {
        statistics: bool,
        group: usize,
        files: usize,
    },
}

/// The type of a column of this kind.
fn draw_type(random: &mut Random, kind: Kind) -> DataType {
    use DataType as T;
    use TimeUnit as U;
    let unit = [U::Second, U::Millisecond, U::Microsecond, U::Nanosecond][random.below(4)];
    match kind {
        Kind::Int => [
            T::Int64,
            T::Int64,
            T::Int32,
            T::Int16,
            T::Int8,
            T::UInt8,
            T::UInt16,
            T::UInt32,
        ][random.below(8)]
        .clone(),
        Kind::Float => [T::Float64, T::Float64, T::Float32][random.below(3)].clone(),
        Kind::Date if random.below(2) == 0 => T::Date32,
        Kind::Time | Kind::Date => T::Timestamp(unit, None),
        Kind::Text => [T::Utf8, T::Utf8View][random.below(2)].clone(),
        Kind::Bool => T::Boolean,
    }
}

/// A value that the type has, at most some 30 units from the least.
fn draw_value(random: &mut Random, kind: Kind, data_type: &DataType, spread: usize) -> Value {
    let n = random.below(spread) as i64;
    let low = if matches!(
        data_type,
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32
    ) {
        0
    } else {
        -1
    };
    match kind {
        Kind::Int => Value::Int(n + low),
        Kind::Float => Value::Float(n as f64 / 2.0 - 1.0),
        Kind::Text => Value::Text(["", "a", "ab", "b", "ba"][n as usize % 5].into()),
        Kind::Bool => Value::Bool(n % 2 == 0),
        Kind::Time | Kind::Date => {
            let (unit, half) = if kind == Kind::Time {
                (SECOND, SECOND / 2)
            } else {
                (DAY, DAY / 2)
            };
            let is_whole = match data_type {
                DataType::Date32 => true,
                DataType::Timestamp(TimeUnit::Second, _) => kind == Kind::Time,
                _ => false,
            };
            let more = if is_whole || random.below(3) > 0 {
                0
            } else {
                half
            };
            Value::Time(n * unit + more)
        }
    }
}

fn scalar(value: &Value, data_type: &DataType) -> Result<ScalarValue> {
    let scalar = match value {
        Value::Null => return ScalarValue::try_from(data_type),
        Value::Bool(v) => ScalarValue::from(*v),
        Value::Int(v) => ScalarValue::from(*v),
        Value::Float(v) => ScalarValue::from(*v),
        Value::Time(v) if *data_type == DataType::Date32 => {
            ScalarValue::Date32(Some((v / DAY) as i32))
        }
        Value::Time(v) => ScalarValue::TimestampNanosecond(Some(*v), None),
        Value::Text(v) => ScalarValue::from(&**v),
    };
    scalar.cast_to(data_type)
}

impl Table {
    /// Draws a table. The columns `k` and `e` are of the kind that all range keys have.
    pub fn draw(random: &mut Random, key: Kind) -> Self {
        let size = [0, 1, 2, 3, 5, 8, 8, 12, 12, 20, 30, 40][random.below(12)];
        let spread = [3, 8, 30][random.below(3)];
        let kinds = [
            ("id", Kind::Int),
            ("g", Kind::Text),
            ("h", Kind::Int),
            ("k", key),
            ("e", key),
            ("v", Kind::Int),
            ("f", Kind::Float),
            ("b", Kind::Bool),
        ];
        let types: Vec<DataType> = kinds
            .iter()
            .map(|(name, kind)| {
                if *name == "id" {
                    DataType::Int64
                } else {
                    draw_type(random, *kind)
                }
            })
            .collect();
        let nullable: Vec<bool> = kinds.iter().map(|_| random.below(5) > 1).collect();
        let nulls: Vec<usize> = kinds
            .iter()
            .zip(&nullable)
            .map(|((name, _), is)| {
                if *name == "id" || !is {
                    0
                } else {
                    [0, 2, 2, 5, 12][random.below(5)]
                }
            })
            .collect();
        let mut rows: Vec<Vec<Value>> = (0..size)
            .map(|row| {
                let each = kinds.iter().zip(&types).zip(&nulls).map(
                    |(((name, kind), data_type), nulls)| {
                        if random.below(12) < *nulls {
                            return Value::Null;
                        }
                        match *name {
                            "id" => Value::Int(row),
                            "g" | "h" | "b" => draw_value(random, *kind, data_type, 3),
                            _ => draw_value(random, *kind, data_type, spread),
                        }
                    },
                );
                each.collect()
            })
            .collect();
        // Intervals end after they begin, mostly.
        if random.below(2) == 0 {
            for row in &mut rows {
                if row[3]
                    .compare(&row[4])
                    .is_some_and(std::cmp::Ordering::is_gt)
                    && types[3] == types[4]
                {
                    row.swap(3, 4);
                }
            }
        }
        match random.below(4) {
            0 => rows.sort_by_key(|row| row[3].is_null()),
            1 => rows.sort_by(|a, b| {
                a[3].compare(&b[3])
                    .unwrap_or_else(|| a[3].is_null().cmp(&b[3].is_null()))
            }),
            _ => {}
        }
        let storage = if random.below(6) == 0 {
            let (statistics, group) = (random.below(2) == 0, [3, 1000][random.below(2)]);
            Storage::Parquet {
                statistics,
                group,
                files: 1 + random.below(2),
            }
        } else {
            Storage::Memory {
                partitions: [1, 1, 2, 3][random.below(4)],
                batch: [2, 7, 100][random.below(3)],
            }
        };
        let columns = kinds.iter().map(|(name, kind)| Column {
            name: (*name).into(),
            kind: *kind,
        });
        Self {
            columns: columns.collect(),
            types,
            nullable,
            rows: rows.into_iter().map(Arc::from).collect(),
            storage,
        }
    }

    /// One batch of these rows.
    fn batch(&self, schema: &Arc<Schema>, rows: &[Arc<[Value]>]) -> Result<RecordBatch> {
        if rows.is_empty() {
            return Ok(RecordBatch::new_empty(Arc::clone(schema)));
        }
        let array = |(column, data_type): (usize, &DataType)| -> Result<ArrayRef> {
            let scalars = rows.iter().map(|row| scalar(&row[column], data_type));
            ScalarValue::iter_to_array(scalars.collect::<Result<Vec<_>>>()?)
        };
        let arrays = self.types.iter().enumerate().map(array);
        Ok(RecordBatch::try_new(
            Arc::clone(schema),
            arrays.collect::<Result<Vec<_>>>()?,
        )?)
    }

    /// Registers the table. Files are written to `folder`.
    pub async fn register(&self, ctx: &SessionContext, name: &str, folder: &Path) -> Result<()> {
        let fields = self.columns.iter().zip(&self.types).zip(&self.nullable);
        let fields: Vec<_> = fields
            .map(|((c, t), nullable)| Field::new(c.name.to_string(), t.clone(), *nullable))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        match &self.storage {
            Storage::Memory { partitions, batch } => {
                let size = self.rows.len().div_ceil(*partitions).max(1);
                let mut parts: Vec<Vec<RecordBatch>> = vec![];
                for part in self.rows.chunks(size) {
                    let batches = part.chunks(*batch).map(|rows| self.batch(&schema, rows));
                    parts.push(batches.collect::<Result<_>>()?);
                }
                parts.resize(*partitions, vec![]);
                ctx.register_table(name, Arc::new(MemTable::try_new(schema, parts)?))?;
            }
            Storage::Parquet {
                statistics,
                group,
                files,
            } => {
                let folder = folder.join(name);
                std::fs::create_dir_all(&folder)?;
                let statistics = if *statistics {
                    EnabledStatistics::Page
                } else {
                    EnabledStatistics::None
                };
                let size = self.rows.len().div_ceil(*files).max(1);
                for file in 0..*files {
                    let properties = WriterProperties::builder()
                        .set_statistics_enabled(statistics)
                        .set_max_row_group_row_count(Some(*group))
                        .build();
                    let rows = self.rows.chunks(size).nth(file).unwrap_or(&[]);
                    let file = File::create(folder.join(format!("{file}.parquet")))?;
                    let mut writer =
                        ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties))?;
                    writer.write(&self.batch(&schema, rows)?)?;
                    writer.close()?;
                }
                let folder = folder.to_string_lossy().into_owned();
                ctx.register_parquet(name, folder, ParquetReadOptions::default())
                    .await?;
            }
        }
        Ok(())
    }

    /// A statement that creates the table.
    pub fn sql(&self, name: &str) -> String {
        let columns = self
            .columns
            .iter()
            .zip(&self.types)
            .zip(&self.nullable)
            .map(|((c, t), nullable)| {
                let data_type = match t {
                    DataType::Int8 => "TINYINT",
                    DataType::Int16 => "SMALLINT",
                    DataType::Int32 => "INT",
                    DataType::Int64 => "BIGINT",
                    DataType::UInt8 => "TINYINT UNSIGNED",
                    DataType::UInt16 => "SMALLINT UNSIGNED",
                    DataType::UInt32 => "INT UNSIGNED",
                    DataType::Float32 => "FLOAT",
                    DataType::Float64 => "DOUBLE",
                    DataType::Date32 => "DATE",
                    DataType::Timestamp(TimeUnit::Second, _) => "TIMESTAMP(0)",
                    DataType::Timestamp(TimeUnit::Millisecond, _) => "TIMESTAMP(3)",
                    DataType::Timestamp(TimeUnit::Microsecond, _) => "TIMESTAMP(6)",
                    DataType::Timestamp(TimeUnit::Nanosecond, _) => "TIMESTAMP(9)",
                    DataType::Boolean => "BOOLEAN",
                    _ => "VARCHAR",
                };
                format!(
                    "{} {data_type}{}",
                    c.name,
                    if *nullable { "" } else { " NOT NULL" }
                )
            });
        let columns = columns.collect::<Vec<_>>().join(", ");
        let rows = self.rows.iter().map(|row| {
            let cells = row.iter().map(|v| match v {
                Value::Null => "NULL".into(),
                v => literal(v, Kind::Time)
                    .trim_start_matches("TIMESTAMP ")
                    .to_string(),
            });
            format!("({})", cells.collect::<Vec<_>>().join(", "))
        });
        let rows = rows.collect::<Vec<_>>();
        let values = if rows.is_empty() {
            String::new()
        } else {
            format!(" AS VALUES {}", rows.join(", "))
        };
        format!(
            "CREATE TABLE {name} ({columns}){values}; -- {:?}",
            self.storage
        )
    }

    /// The same table without some rows, in memory.
    pub fn without(&self, from: usize, to: usize) -> Self {
        let mut less = self.clone();
        less.rows.drain(from..to);
        less
    }

    /// The same table in one batch in memory.
    pub fn in_one_batch(&self) -> Self {
        let mut plain = self.clone();
        plain.storage = Storage::Memory {
            partitions: 1,
            batch: 1000,
        };
        plain
    }
}
