//! Two tables in Parquet files, drawn at random.

use std::fs::File;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingOptions;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{SessionContext, col};
use rmq_testing::Random;
use tempfile::TempDir;

/// The type of the columns `k` and `e`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Key {
    Int,
    Float,
    Time,
}

/// The tables `p` and `q`: `id`, equality keys `g` and `h`, the ends `k` and `e` of a range, values `v` and `f`, and a
/// text `s`.
pub struct Tables {
    folder: TempDir,
    /// Whether the rows of `p` take more memory than some workers have.
    pub are_large: bool,
    pub key: Key,
    /// The values of `k` are below it.
    pub spread: usize,
    pub rows_of_p: usize,
    pub rows_of_q: usize,
    pub files_with_rows_of_q: usize,
    sorted: [bool; 2],
    pub label: String,
}

impl Tables {
    pub fn draw(random: &mut Random) -> Self {
        let are_large = random.below(8) == 0;
        let key = [Key::Int, Key::Int, Key::Float, Key::Time, Key::Time][random.below(5)];
        let rows_of_p = if are_large {
            12_000 + random.below(8_000)
        } else {
            [0, 7, 60, 300, 600, 900][random.below(6)]
        };
        let rows_of_q = [0, 6, 50, 200, 300, 500][random.below(6)];
        let spread = [4, 60, 1_000, 50_000][random.below(4)];
        let texts = random.below(2) == 0;
        let folder = TempDir::new().expect("a folder");
        let mut label = format!("key {key:?}, spread {spread}, texts {texts}");
        let (mut files_with_rows_of_q, mut sorted) = (0, [false; 2]);
        for (table, (name, rows)) in [("p", rows_of_p), ("q", rows_of_q)].into_iter().enumerate() {
            sorted[table] = random.below(3) == 0;
            let batch = draw_rows(random, rows, key, spread, texts, sorted[table]);
            let files = [1, 2, 3, 5, 8][random.below(5)];
            // Some files are empty.
            let mut cuts: Vec<usize> = (1..files).map(|_| random.below(rows + 1)).collect();
            cuts.sort_unstable();
            cuts.push(rows);
            let group = [20, 1_000_000][random.below(2)];
            let statistics = [EnabledStatistics::None, EnabledStatistics::Page][random.below(2)];
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder).expect("a new folder");
            let (mut begin, mut with_rows) = (0, 0);
            for (number, end) in cuts.into_iter().enumerate() {
                let properties = WriterProperties::builder()
                    .set_statistics_enabled(statistics)
                    .set_max_row_group_row_count(Some(group));
                let file = File::create(folder.join(format!("{number}.parquet"))).expect("a file");
                let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()));
                let mut writer = writer.expect("a writer");
                writer
                    .write(&batch.slice(begin, end - begin))
                    .expect("rows");
                writer.close().expect("a file");
                with_rows += usize::from(end > begin);
                begin = end;
            }
            if name == "q" {
                files_with_rows_of_q = with_rows;
            }
            let order = if sorted[table] { ", sorted" } else { "" };
            label += &format!("; {name}: {rows} rows, {with_rows} of {files} files{order}");
        }
        Self {
            folder,
            are_large,
            key,
            spread,
            rows_of_p,
            rows_of_q,
            files_with_rows_of_q,
            sorted,
            label,
        }
    }

    pub async fn register(&self, ctx: &SessionContext) {
        for (name, sorted) in ["p", "q"].into_iter().zip(self.sorted) {
            let mut options = ListingOptions::new(Arc::new(ParquetFormat::default()));
            if sorted {
                options = options.with_file_sort_order(vec![vec![col("k").sort(true, true)]]);
            }
            let path = format!("{}/", self.folder.path().join(name).display());
            let added = ctx.register_listing_table(name, path, options, None, None);
            added.await.expect("a new table");
        }
    }
}

fn draw_rows(
    random: &mut Random,
    rows: usize,
    key: Key,
    spread: usize,
    texts: bool,
    sorted: bool,
) -> RecordBatch {
    let mut numbers = |limit: usize, nulls: usize| -> Vec<Option<i64>> {
        let values = (0..rows).map(|_| {
            let value = random.below(limit) as i64;
            (random.below(100) >= nulls).then_some(value)
        });
        values.collect()
    };
    let mut k = numbers(spread, 5);
    if sorted {
        // NULLs first.
        k.sort_unstable();
    }
    let lengths = numbers(spread / 10 + 3, 5);
    let e: Vec<Option<i64>> = k
        .iter()
        .zip(&lengths)
        .map(|(k, l)| Some((*k)? + (*l)?))
        .collect();
    let key_array = |values: Vec<Option<i64>>| -> ArrayRef {
        match key {
            Key::Int => Arc::new(Int64Array::from(values)),
            Key::Float => {
                let halves = values.into_iter().map(|v| v.map(|v| v as f64 / 2.0));
                Arc::new(halves.collect::<Float64Array>())
            }
            Key::Time => {
                let seconds = values.into_iter().map(|v| v.map(|v| v * 1000));
                Arc::new(seconds.collect::<TimestampMillisecondArray>())
            }
        }
    };
    // Zipf, more or less.
    let groups = numbers(64, 4)
        .into_iter()
        .map(|g| g.map(|g| g * g * g / 40_000));
    let groups: Vec<Option<i64>> = groups.collect();
    let g: ArrayRef = if texts {
        let names = groups.iter().map(|g| g.map(|g| format!("g{g}")));
        Arc::new(names.collect::<StringArray>())
    } else {
        Arc::new(Int64Array::from(groups))
    };
    let h = numbers(3, 4).into_iter().map(|h| h.map(|h| h as i32));
    let h: ArrayRef = Arc::new(h.collect::<Int32Array>());
    let v: ArrayRef = Arc::new(Int64Array::from(numbers(20, 8)));
    // Sums of these are exact in any order.
    let f = numbers(400, 8)
        .into_iter()
        .map(|f| f.map(|f| f as f64 / 4.0));
    let f: ArrayRef = Arc::new(f.collect::<Float64Array>());
    let s = numbers(12, 8)
        .into_iter()
        .map(|s| s.map(|s| format!("s{s}")));
    let s: ArrayRef = Arc::new(s.collect::<StringArray>());
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    RecordBatch::try_from_iter_with_nullable([
        ("id", id, false),
        ("g", g, true),
        ("h", h, true),
        ("k", key_array(k), true),
        ("e", key_array(e), true),
        ("v", v, true),
        ("f", f, true),
        ("s", s, true),
    ])
    .expect("columns of one length")
}
