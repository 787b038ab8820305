//! Joins by an equality key with an incidental range filter, such as line items shipped within a month of an order:
//! where `rmq.range_joins = 'auto'` changes from DataFusion's hash join to the range join, and what each of them costs
//! beside DataFusion's own plan.
//!
//! Items have a number of rows per key. Either each key has one order, as in TPC-H, or orders have keys at random, as
//! many as make a given number of pairs with equal keys. The range of an order has a given share of the items with its
//! key.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};

use crate::run;

/// The size of a batch of a table in memory.
const BATCH_ROWS: usize = 8192;

/// Days are below this.
const DAYS: f64 = 1e6;

/// The tables and queries of the comparison.
#[derive(Args)]
pub(crate) struct Crossover {
    /// Compares DataFusion's hash join with the range join, over tables of its own
    #[arg(long)]
    crossover: bool,
    /// Rows of items
    #[arg(long, default_value_t = 1_000_000)]
    items: usize,
    /// The most pairs with equal keys
    #[arg(long, default_value_t = 20_000_000)]
    pairs: usize,
    /// Items with the same key
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16,64,256,1000,10000"
    )]
    fan_out: Vec<usize>,
    /// The share of the items of a key that are in a range
    #[arg(long, value_delimiter = ',', default_value = "1,0.3,0.1,0.01")]
    selectivity: Vec<f64>,
    /// Where tables are, which decides what is known of them
    #[arg(long, value_enum, default_value_t = Storage::Memory)]
    storage: Storage,
    /// Keys are strings, of which files have no statistics that tell how many there are
    #[arg(long)]
    text_keys: bool,
    /// Items come by key, as those of TPC-H
    #[arg(long)]
    by_key: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Storage {
    Memory,
    Parquet,
}

/// How orders have keys.
#[derive(Clone, Copy, PartialEq)]
enum Orders {
    OneAKey,
    Many,
}

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneAKey => "one a key",
            Self::Many => "many",
        })
    }
}

/// The queries, where `{days}` is the length of a range.
const QUERIES: [(&str, &str); 4] = [
    (
        "pairs",
        "SELECT count(*), sum(i.id + o.id) FROM orders o JOIN items i ON i.key = o.key AND i.day BETWEEN o.day AND o.day + {days}",
    ),
    // Aggregates over a join, of which a range join makes no pairs.
    (
        "totals",
        "SELECT count(*), sum(i.id) FROM orders o JOIN items i ON i.key = o.key AND i.day BETWEEN o.day AND o.day + {days}",
    ),
    (
        "by order",
        "SELECT count(*), sum(s), min(d) FROM (SELECT o.id, sum(i.id) AS s, min(i.day) AS d FROM orders o JOIN items i ON i.key = o.key AND i.day BETWEEN o.day AND o.day + {days} GROUP BY o.id)",
    ),
    (
        "exists",
        "SELECT count(*), sum(o.id) FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE i.key = o.key AND i.day BETWEEN o.day AND o.day + {days})",
    ),
];

/// The settings that are compared: DataFusion's own plan, and values of `rmq.range_joins`.
const SETTINGS: [&str; 3] = [
    "rmq.rewrite = false",
    "rmq.range_joins = 'auto'",
    "rmq.range_joins = 'always'",
];

impl Crossover {
    /// Whether the comparison is wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.crossover
    }

    /// Prints a table of CPU seconds and ratios: the best of `runs` runs, in which the settings take turns.
    pub(crate) async fn measure(&self, threads: usize, runs: usize) -> Result<()> {
        println!(
            "| query | orders | rows a key | rows of orders | selectivity | DataFusion, CPU s | auto is a | auto / DataFusion | always / DataFusion |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for orders in [Orders::OneAKey, Orders::Many] {
            for fan_out in &self.fan_out {
                if orders == Orders::Many && *fan_out == 1 {
                    continue;
                }
                for selectivity in &self.selectivity {
                    self.measure_tables(orders, *fan_out, *selectivity, (threads, runs))
                        .await?;
                }
            }
        }
        Ok(())
    }

    async fn measure_tables(
        &self,
        orders: Orders,
        fan_out: usize,
        selectivity: f64,
        (threads, runs): (usize, usize),
    ) -> Result<()> {
        let keys = (self.items / fan_out).max(1);
        let order_rows = match orders {
            Orders::OneAKey => keys,
            Orders::Many => (self.pairs / fan_out).min(self.items),
        };
        let order_key = |row: usize| match orders {
            Orders::OneAKey => row,
            Orders::Many => pick(1, row, keys),
        };
        let item_key = |row: usize| {
            let row = if self.by_key {
                row
            } else {
                shuffled(row, self.items)
            };
            row % self.items / fan_out % keys
        };
        let range = DAYS * selectivity;
        let order_days = |row| (unit(2, row) * (DAYS - range)) as i64;
        let tables = [
            ("orders", self.batches(order_rows, order_key, order_days)?),
            (
                "items",
                self.batches(self.items, item_key, |row| (unit(3, row) * DAYS) as i64)?,
            ),
        ];
        let folder = tempfile::tempdir()?;
        let mut sessions = vec![];
        for setting in SETTINGS {
            let config = SessionConfig::new().with_target_partitions(threads);
            let ctx = SessionContext::new_with_config(config);
            datafusion_rmq::register(&ctx);
            ctx.sql("SET rmq.keep_indexes = false").await?;
            ctx.sql(&format!("SET {setting}")).await?.collect().await?;
            for (name, batches) in &tables {
                self.register(&ctx, name, batches, folder.path(), threads)
                    .await?;
            }
            sessions.push(ctx);
        }
        for (name, query) in QUERIES {
            let sql = query.replace("{days}", &(range as i64).to_string());
            let mut best = [Duration::MAX; SETTINGS.len()];
            let mut answer: Option<String> = None;
            for _ in 0..runs.max(1) {
                for (ctx, best) in sessions.iter().zip(&mut best) {
                    let (cpu, _, _, row) = run(ctx, &sql).await?;
                    let answer = answer.get_or_insert_with(|| row.clone());
                    assert_eq!(answer, &row, "two plans differ for {sql}");
                    *best = cpu.min(*best);
                }
            }
            let plan = sessions[1].sql(&sql).await?.create_physical_plan().await?;
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            let chosen = if plan.contains("RangeJoinExec") {
                "range join"
            } else {
                "hash join"
            };
            let [own, auto, always] = best.map(|time| time.as_secs_f64());
            println!(
                "| {name} | {orders} | {fan_out} | {order_rows} | {selectivity} | {own:.3} | {chosen} | {:.2} | {:.2} |",
                auto / own,
                always / own
            );
        }
        Ok(())
    }

    /// A table of keys, days and row numbers, in batches.
    fn batches(
        &self,
        rows: usize,
        key: impl Fn(usize) -> usize,
        day: impl Fn(usize) -> i64,
    ) -> Result<Vec<RecordBatch>> {
        let starts = (0..rows.max(1)).step_by(BATCH_ROWS);
        let batch = |start: usize| {
            let rows = start..(start + BATCH_ROWS).min(rows);
            let keys = rows.clone().map(&key);
            let keys: ArrayRef = if self.text_keys {
                Arc::new(
                    keys.map(|key| Some(format!("key{key:09}")))
                        .collect::<StringArray>(),
                )
            } else {
                Arc::new(keys.map(|key| key as i64).collect::<Int64Array>())
            };
            let ids: Int64Array = rows.clone().map(|row| row as i64).collect();
            let days: Int64Array = rows.map(&day).collect();
            let columns: [(&str, ArrayRef); 3] = [
                ("id", Arc::new(ids)),
                ("key", keys),
                ("day", Arc::new(days)),
            ];
            Ok(RecordBatch::try_from_iter(columns)?)
        };
        starts.map(batch).collect()
    }

    /// Registers a table in memory, or in a file of the folder, which is written the first time.
    async fn register(
        &self,
        ctx: &SessionContext,
        name: &str,
        batches: &[RecordBatch],
        folder: &Path,
        partitions: usize,
    ) -> Result<()> {
        let share = batches.len().div_ceil(partitions);
        let parts = batches.chunks(share).map(<[_]>::to_vec).collect();
        let table = Arc::new(MemTable::try_new(batches[0].schema(), parts)?);
        if self.storage == Storage::Memory {
            ctx.register_table(name, table)?;
            return Ok(());
        }
        let path = folder.join(format!("{name}.parquet"));
        let path = path.to_string_lossy();
        if !Path::new(path.as_ref()).exists() {
            let frame = ctx.read_table(table)?;
            frame.write_parquet(&path, Default::default(), None).await?;
        }
        ctx.register_parquet(name, path.as_ref(), ParquetReadOptions::default())
            .await
    }
}

/// Number `i` of sequence `s`, of 53 random bits, by `SplitMix64`.
fn random(s: u64, i: usize) -> u64 {
    let mut bits = (i as u64 + 1 + (s << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (bits ^ (bits >> 31)) >> 11
}

/// A number in [0, 1).
fn unit(s: u64, i: usize) -> f64 {
    random(s, i) as f64 / (1_u64 << 53) as f64
}

/// A number below `end`.
fn pick(s: u64, i: usize, end: usize) -> usize {
    (random(s, i) % end as u64) as usize
}

/// A permutation of `0..rows` that leaves no neighbours: multiplication by a prime that does not divide `rows`.
fn shuffled(row: usize, rows: usize) -> usize {
    let primes = [2_654_435_761, 2_246_822_519];
    let prime = primes
        .into_iter()
        .find(|prime| !rows.is_multiple_of(*prime))
        .unwrap_or(1);
    (row as u128 * prime as u128 % rows as u128) as usize
}
