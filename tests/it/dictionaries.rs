//! Range joins that return dictionary values, compared with a loop over all rows. All batches together have more
//! distinct values than the key type can address.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, make_array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::fake::Fake;
use crate::properties::{array, types};
use crate::range_join::{lines, metric};
use crate::spilling::ForRangeJoins;
use crate::support::{register, run, session_of_pool, set};

const KEYS: [DataType; 8] = [
    DataType::Int8,
    DataType::UInt8,
    DataType::Int16,
    DataType::UInt16,
    DataType::Int32,
    DataType::UInt32,
    DataType::Int64,
    DataType::UInt64,
];

/// Builds a dictionary array from keys and values.
fn dictionary(key: &DataType, keys: Vec<Option<i64>>, values: &ArrayRef) -> ArrayRef {
    let data_type =
        DataType::Dictionary(Box::new(key.clone()), Box::new(values.data_type().clone()));
    let keys = cast(&Int64Array::from(keys), key).expect("keys that fit their type");
    let data = keys.to_data().into_builder().data_type(data_type);
    let data = data.add_child_data(values.to_data()).build();
    make_array(data.expect("keys of these values"))
}

/// The table `p`, with a dictionary column.
struct DictionaryTable {
    batches: Vec<RecordBatch>,
    /// The values of the dictionaries, as text.
    values: Vec<String>,
    /// A unique number for each row, unordered.
    v: Vec<i64>,
}

impl DictionaryTable {
    /// Creates batches whose dictionaries share no array and few values.
    fn new(key: &DataType, value: &DataType, batches: i64, rows: i64) -> Self {
        // Dictionaries with 16-bit keys have many values that no row uses.
        let distinct = match key.primitive_width() {
            Some(2) => 9_000,
            _ => 100,
        };
        let mut table = Self {
            batches: vec![],
            values: vec![],
            v: vec![],
        };
        for batch in 0..batches {
            let bits = (0..distinct).map(|i| {
                let bits = ((batch * distinct + i) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (i % 31 != 7).then_some(bits)
            });
            let values = array(value, &bits.collect::<Vec<_>>(), false);
            let first = batch * rows;
            let keys = (first..first + rows).map(|i| (i % 23 != 5).then_some(i * 7 % distinct));
            let dictionary = dictionary(key, keys.collect(), &values);
            let format = FormatOptions::default().with_null("NULL");
            let shown = ArrayFormatter::try_new(&dictionary, &format).expect("a displayable type");
            let shown = (0..dictionary.len()).map(|i| shown.value(i).to_string());
            table.values.extend(shown);
            let v: Vec<i64> = (first..first + rows).map(|i| i * 7919 % 100_003).collect();
            table.v.extend(&v);
            let k = Int64Array::from_iter_values(first..first + rows);
            let columns: [(&str, ArrayRef); 3] = [
                ("k", Arc::new(k)),
                ("v", Arc::new(Int64Array::from(v))),
                ("d", Arc::clone(&dictionary)),
            ];
            let fields = columns
                .iter()
                .map(|(n, a)| Field::new(*n, a.data_type().clone(), true));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let columns = columns.map(|(_, array)| array).to_vec();
            let batch = RecordBatch::try_new(schema, columns).expect("columns of one length");
            table.batches.push(batch);
        }
        table
    }

    fn register(&self, ctx: &SessionContext) {
        let table = MemTable::try_new(self.batches[0].schema(), vec![self.batches.clone()]);
        ctx.deregister_table("p").expect("deregistered");
        ctx.register_table("p", Arc::new(table.expect("batches of one schema")))
            .expect("a new name");
    }

    /// Returns the first value, the last value and the value at the smallest `v` of each window, which starts at row
    /// `id * step` and has `id % 4 + 1` rows.
    fn expected(&self, probe_rows: i64, step: i64) -> Vec<String> {
        let expected = (0..probe_rows).map(|id| {
            let (first, last) = (id * step, id * step + id % 4);
            let last = last.min(self.values.len() as i64 - 1);
            let smallest = (first..=last).min_by_key(|row| self.v[*row as usize]);
            let at = |row: i64| self.values[row as usize].as_str();
            let Some(smallest) = smallest else {
                return format!("{id} | NULL | NULL | NULL");
            };
            format!("{id} | {} | {} | {}", at(first), at(last), at(smallest))
        });
        let mut expected: Vec<String> = expected.collect();
        expected.sort_unstable();
        expected
    }
}

/// Returns range joins that select values, in each SQL form.
fn queries(step: i64) -> [String; 3] {
    let window = format!("p.k BETWEEN q.id * {step} AND q.id * {step} + q.id % 4");
    let selected = [
        "first_value(p.d ORDER BY p.k)",
        "last_value(p.d ORDER BY p.k)",
        "first_value(p.d ORDER BY p.v)",
    ];
    let subqueries = selected.map(|c| format!("(SELECT {c} FROM p WHERE {window})"));
    let named: Vec<_> = selected
        .iter()
        .enumerate()
        .map(|(i, c)| format!("{c} AS c{i}"))
        .collect();
    let named = named.join(", ");
    [
        format!("SELECT q.id, {} FROM q", subqueries.join(", ")),
        format!(
            "SELECT q.id, x.* FROM q LEFT JOIN LATERAL (SELECT {named} FROM p WHERE {window}) x ON true"
        ),
        format!(
            "SELECT * FROM range_join('q', 'p', '', '{window}', '{}')",
            named.replace("p.", "")
        ),
    ]
}

/// Registers the probe side `q`.
fn register_probe(ctx: &SessionContext, rows: i64) {
    let ids = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
    register(ctx, "q", &[("id", ids)], &[]);
}

/// Returns the result in its order, and a metric of the plan.
async fn run_with_metric(
    ctx: &SessionContext,
    sql: &str,
    name: &str,
) -> Result<(Vec<RecordBatch>, usize), DataFusionError> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((batches, metric(&plan, name)))
}

/// Checks the result, its order by probe row, and its dictionary types.
fn check(batches: &[RecordBatch], table: &DictionaryTable, expected: &[String], sql: &str) {
    let found = lines(batches);
    let types: Vec<_> = batches[0]
        .schema()
        .fields()
        .iter()
        .map(|f| f.data_type().clone())
        .collect();
    let dictionary = table.batches[0].column(2).data_type();
    assert_eq!(types[1..], vec![dictionary.clone(); 3], "{sql}");
    assert_eq!(found, expected, "{dictionary}: {sql}");
    let ids = batches
        .iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values());
    assert!(ids.is_sorted(), "{dictionary}: {sql}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_many_dictionaries_are_selected() {
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .with_batch_size(200);
    let on_cpu = SessionContext::new_with_config(config.clone());
    datafusion_rmq::register(&on_cpu);
    let on_devices = SessionContext::new_with_config(config.clone());
    let on_devices = Fake::real().register(on_devices, &[("rmq.engine", "cuda")]);
    register_probe(&on_cpu, 410);
    register_probe(&on_devices, 410);
    let is_plain = |t: &DataType| !t.is_null() && !matches!(t, DataType::Dictionary(..));
    for (number, value) in types().into_iter().filter(is_plain).enumerate() {
        // All types of keys come in all modes, with one type of values or another.
        let in_all_modes = &[DataType::Int8, DataType::UInt16, DataType::Int64][number % 3];
        for key in &KEYS {
            let table = DictionaryTable::new(key, &value, 8, 100);
            let expected = table.expected(410, 2);
            let all_modes = key == in_all_modes;
            for ctx in [Some(&on_cpu), Some(&on_devices).filter(|_| all_modes)] {
                let Some(ctx) = ctx else {
                    continue;
                };
                table.register(ctx);
                for sql in queries(2) {
                    let found = run_with_metric(ctx, &sql, "spill_count").await;
                    let (found, _) =
                        found.unwrap_or_else(|e| panic!("{key} of {value}: {sql}: {e}"));
                    check(&found, &table, &expected, &sql);
                }
            }
            if !all_modes {
                continue;
            }
            // Doubles the memory limit until it suffices.
            let mut limit = 16 << 10;
            let sql = &queries(2)[1];
            let files = loop {
                let ctx = session_of_pool(config.clone(), ForRangeJoins::new(limit));
                register_probe(&ctx, 410);
                table.register(&ctx);
                match run_with_metric(&ctx, sql, "spill_count").await {
                    Ok((found, files)) => {
                        check(&found, &table, &expected, sql);
                        break files;
                    }
                    Err(error) => {
                        let root = error.find_root();
                        let exhausted = matches!(root, DataFusionError::ResourcesExhausted(_));
                        assert!(exhausted && limit < 64 << 20, "{key} of {value}: {error}");
                    }
                }
                limit *= 2;
            };
            assert!(files > 1, "{key} of {value}: {files} files");
        }
    }
}

/// A small probe side, of whose windows it is made out what they reach.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_many_dictionaries_are_selected_by_what_windows_reach() {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.pruning", "always");
    set(&ctx, "rmq.engine", "cpu");
    register_probe(&ctx, 12);
    for value in [
        DataType::Utf8View,
        DataType::BinaryView,
        DataType::Boolean,
        DataType::Utf8,
    ] {
        let mut table = DictionaryTable::new(&DataType::UInt8, &value, 7, 10_000);
        let expected = table.expected(12, 6000);
        // Unordered rows.
        table.batches.reverse();
        for batch in &mut table.batches {
            let rows = (0..batch.num_rows() as u32).map(|i| i * 7919 % 10_000);
            let rows = datafusion::arrow::array::UInt32Array::from_iter_values(rows);
            let moved = datafusion::arrow::compute::take_record_batch(batch, &rows);
            *batch = moved.expect("rows of the batch");
        }
        table.register(&ctx);
        for sql in queries(6000) {
            let (found, compared) = run_with_metric(&ctx, &sql, "rows_scanned")
                .await
                .expect(&sql);
            check(&found, &table, &expected, &sql);
            assert!(compared > 0, "{sql}");
        }
    }
}

/// Singleton groups whose keys are dictionaries that can't be concatenated.
#[tokio::test(flavor = "multi_thread")]
async fn singleton_groups_keep_their_dictionaries() {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    datafusion_rmq::register(&ctx);
    run(
        &ctx,
        "CREATE TABLE t AS SELECT value AS k FROM range(0, 1000)",
    )
    .await
    .expect("a table");
    let table = DictionaryTable::new(&DataType::Int8, &DataType::Utf8View, 4, 60);
    table.register(&ctx);
    let sql = "SELECT p.k, p.d, max(t.k) AS m FROM p JOIN t ON t.k BETWEEN p.k AND p.k + 3 GROUP BY p.k, p.d";
    let (found, _) = run_with_metric(&ctx, sql, "rows_scanned")
        .await
        .expect("an answer");
    let mut expected: Vec<String> = (0..240)
        .map(|k| format!("{k} | {} | {}", table.values[k], k + 3))
        .collect();
    expected.sort_unstable();
    assert_eq!(lines(&found), expected);
}
