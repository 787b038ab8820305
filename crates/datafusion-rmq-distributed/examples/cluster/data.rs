//! Quotes and trades of symbols whose frequencies are those of Zipf's law, in the order of time.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::error::Result;
use datafusion::parquet::arrow::ArrowWriter;
use rmq_testing::Random;

/// Rows that are written at once.
const BATCH: usize = 1 << 17;

/// The span of time, in microseconds.
const DAY: usize = 86_400_000_000;

#[derive(Args)]
pub struct Data {
    /// Folder for the tables quotes and trades
    #[arg(long)]
    folder: PathBuf,
    /// Rows of quotes; trades have a tenth
    #[arg(long, default_value_t = 1_000_000)]
    quotes: usize,
    /// Symbols
    #[arg(long, default_value_t = 1_000)]
    symbols: usize,
    /// Files of each table
    #[arg(long, default_value_t = 32)]
    files: usize,
    /// Per cent of the rows that are of one symbol, besides its share by Zipf's law
    #[arg(long, default_value_t = 0)]
    heavy: usize,
}

impl Data {
    pub fn write(&self) -> Result<()> {
        let weights = (1..=self.symbols).map(|rank| 1.0 / rank as f64);
        let mut sum = 0.0;
        let sums: Vec<f64> = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        for table in ["quotes", "trades"] {
            std::fs::create_dir_all(self.folder.join(table))?;
        }
        let next = AtomicUsize::new(0);
        let write = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                match number / self.files {
                    0 => self.write_file("quotes", number, self.quotes, &sums)?,
                    1 => {
                        let file = number - self.files;
                        self.write_file("trades", file, self.quotes / 10, &sums)?;
                    }
                    _ => return Ok(()),
                }
            }
        };
        let threads = std::thread::available_parallelism()?.get();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
            threads.into_iter().try_for_each(|thread| {
                let result = thread.join();
                result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }

    /// Writes one file of a table of `rows` rows.
    fn write_file(&self, table: &str, file: usize, rows: usize, sums: &[f64]) -> Result<()> {
        let [mut begin, end] = [file, file + 1].map(|file| file * rows / self.files);
        let random = &mut Random::from_seed((file * 2 + table.len() % 2) as u64);
        let path = self.folder.join(table).join(format!("{file:04}.parquet"));
        let mut writer = None;
        while begin < end || writer.is_none() {
            let batch = self.batch(table, begin..end.min(begin + BATCH), rows, sums, random)?;
            let writer = match &mut writer {
                Some(writer) => writer,
                None => {
                    let file = File::create(&path)?;
                    writer.insert(ArrowWriter::try_new(file, batch.schema(), None)?)
                }
            };
            writer.write(&batch)?;
            begin += BATCH;
        }
        if let Some(writer) = writer {
            writer.close()?;
        }
        Ok(())
    }

    fn batch(
        &self,
        table: &str,
        rows: std::ops::Range<usize>,
        all: usize,
        sums: &[f64],
        random: &mut Random,
    ) -> Result<RecordBatch> {
        let total = sums.last().copied().unwrap_or(1.0);
        let times = rows.clone().map(|row| (row * (DAY / all)) as i64);
        let times: ArrayRef = Arc::new(Int64Array::from_iter_values(times));
        let symbols = rows.clone().map(|_| {
            if random.below(100) < self.heavy {
                return "s0".to_string();
            }
            let at = random.below(1 << 53) as f64 / (1_u64 << 53) as f64 * total;
            format!("s{}", sums.partition_point(|sum| *sum < at))
        });
        let symbols: ArrayRef = Arc::new(StringArray::from_iter_values(symbols));
        let prices = rows
            .clone()
            .map(|_| 100.0 + random.below(10_000) as f64 / 100.0);
        let prices: ArrayRef = Arc::new(Float64Array::from_iter_values(prices));
        let columns = if table == "quotes" {
            vec![("ts", times), ("sym", symbols), ("bid", prices)]
        } else {
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.map(|row| row as i64)));
            vec![
                ("ts", times),
                ("sym", symbols),
                ("price", prices),
                ("id", ids),
            ]
        };
        Ok(RecordBatch::try_from_iter(columns)?)
    }
}
