//! Columns in the files of `rmq.index_directory`, the values of those that fit in memory and the extremes of chunks of
//! others: found by the next process while the table stays as it is, and never trusted otherwise. A process is a
//! session with a catalog of its own. Answers are those of a session without a limit and without a directory.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_testing::{Random, cases, is_usual, runs};
use tempfile::TempDir;

use crate::larger_than_memory::{
    ALL, measured, random_ranges, ranges, types, values, write, write_column,
};
use crate::persisted::{files, states, unwritable, written};
use crate::reasons::{record_log, warnings};
use crate::staleness::{external, settle};
use crate::support::{cpu_session, run, session_of_pool, set};

pub type Metrics = HashMap<String, usize>;

/// Bounds of ranges.
pub type Bounds = Vec<(Option<i64>, Option<i64>)>;

/// The default number of cases with random tables.
const CASES: usize = 9;

/// A limit with which the values of a column are in one file.
pub const VALUES: usize = 1 << 30;

/// A limit with which the chunks of 20,000 integers are in two files.
const CHUNKS: usize = 20_000;

/// Parquet files of a table, and a directory for indexes.
pub struct World {
    pub data: TempDir,
    pub indexes: TempDir,
    /// `rmq.index_memory_limit`.
    pub limit: usize,
    pub bounds: Bounds,
}

impl World {
    /// No files yet.
    pub fn new(limit: usize, bounds: Bounds) -> Self {
        record_log();
        Self {
            data: tempfile::tempdir().expect("a folder"),
            indexes: tempfile::tempdir().expect("a folder"),
            limit,
            bounds,
        }
    }

    /// Two files of 32-bit integers, of 20,000 rows together.
    pub fn of_integers(random: &mut Random, limit: usize) -> Self {
        let world = Self::new(limit, random_ranges(random, 20_000, 200));
        for name in ["a", "b"] {
            world.write(name, &values(random, &DataType::Int32, 10_000));
        }
        world
    }

    /// The number of files of a column whose both directions are asked.
    fn files_of_column(&self) -> usize {
        if self.limit == VALUES { 1 } else { 2 }
    }

    pub fn write(&self, name: &str, column: &ArrayRef) {
        let path = self.data.path().join(format!("{name}.parquet"));
        write(&path, column, (6_000, 501));
    }

    /// A session over the table and the ranges, without a limit, that finds nothing.
    pub async fn free(&self) -> SessionContext {
        self.over(cpu_session(), self.data.path()).await
    }

    /// A new process with this limit, without an index directory.
    pub async fn limited(&self) -> SessionContext {
        let ctx = self.free().await;
        set(&ctx, "rmq.index_memory_limit", &self.limit.to_string());
        ctx
    }

    /// A new process with this limit.
    pub async fn process(&self) -> SessionContext {
        self.process_in(self.indexes.path()).await
    }

    pub async fn process_in(&self, directory: &Path) -> SessionContext {
        let ctx = self.limited().await;
        let directory = directory.display().to_string();
        set(&ctx, "rmq.index_directory", &directory);
        ctx
    }

    pub async fn over(&self, ctx: SessionContext, location: &Path) -> SessionContext {
        external(&ctx, location).await;
        ranges(&ctx, &self.bounds, &[]);
        ctx
    }

    pub async fn expected(&self) -> RecordBatch {
        measured(&self.free().await, ALL).await.0
    }
}

/// The indexes that a query has built, reused and loaded.
pub fn origins(metrics: &Metrics) -> [usize; 3] {
    ["indexes_built", "indexes_reused", "index_loaded"]
        .map(|name| metrics.get(name).copied().unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_process_reads_the_edges_of_ranges_alone() {
    let types = types();
    let mut worlds = vec![];
    for (number, seed) in cases("persisted chunks", &[], CASES)
        .into_iter()
        .enumerate()
    {
        let random = &mut Random::from_seed(seed);
        let data_type = &types[number % types.len()];
        let sizes = (0..=random.below(4)).map(|_| [0, 1, 4096, 20_000, 60_000][random.below(5)]);
        let mut sizes: Vec<usize> = sizes.collect();
        sizes.push(30_000);
        let rows = sizes.iter().sum();
        let width = data_type.primitive_width().unwrap_or(1);
        let world = World::new(rows * width, random_ranges(random, rows, 1_500));
        for (file, rows) in sizes.into_iter().enumerate() {
            // A file without the column has NULLs.
            let name = if random.below(6) == 0 && file > 0 {
                "w"
            } else {
                "v"
            };
            let in_group = 500 + random.below(40_000);
            let path = world.data.path().join(format!("{file}.parquet"));
            let column = values(random, data_type, rows);
            write_column(&path, name, &column, (in_group, 50 + random.below(3_000)));
        }
        worlds.push((
            world,
            format!("RMQ_TEST_CASE={seed}: {rows} rows of {data_type}"),
        ));
    }
    settle();
    let mut edges = 0;
    for (world, what) in worlds {
        let expected = world.expected().await;
        let first = world.process().await;
        let (found, metrics) = measured(&first, ALL).await;
        assert!(found == expected, "{what}");
        assert_eq!(origins(&metrics), [2, 0, 0], "{what}");
        assert_eq!(states(&first).await, ["written"], "{what}");
        assert_eq!(files(world.indexes.path()).len(), 2, "{what}");
        for _ in 0..2 {
            let next = world.process().await;
            let (found, metrics) = measured(&next, ALL).await;
            assert!(found == expected, "{what}");
            assert_eq!(origins(&metrics), [0, 0, 2], "{what}");
            assert_eq!(
                metrics["rows_read"], metrics["boundary_rows_read"],
                "{what}"
            );
            edges += metrics["rows_read"];
            assert_eq!(states(&next).await, ["loaded"], "{what}");
            let (found, metrics) = measured(&next, ALL).await;
            assert!(found == expected, "{what}");
            assert_eq!(origins(&metrics), [0, 2, 0], "{what}");
        }
    }
    assert!(edges > 0, "no rows were read");
}

/// The metric and the state are shown, and one direction of chunks is found without the other.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_is_shown() {
    let world = World::of_integers(&mut Random::from_seed(1), CHUNKS);
    settle();
    let expected = world.expected().await;
    let first = world.process().await;
    run(&first, "SELECT range_min('t.v', l, r) FROM q")
        .await
        .expect("minima");
    assert_eq!(states(&first).await, ["written"]);
    assert_eq!(files(world.indexes.path()).len(), 1);
    let next = world.process().await;
    let (found, metrics) = measured(&next, ALL).await;
    assert!(found == expected);
    assert_eq!(origins(&metrics), [1, 0, 1]);
    written(&next).await;
    let shown = run(&next, "SELECT kind, disk FROM rmq_indexes() ORDER BY kind").await;
    let shown = format!("{:?}", shown.expect("a list"));
    assert!(
        shown.contains("loaded") && shown.contains("written"),
        "{shown}"
    );

    // Nothing is looked for where nothing is to be kept.
    let keeps_none = world.process().await;
    set(&keeps_none, "rmq.keep_indexes", "false");
    let (found, metrics) = measured(&keeps_none, ALL).await;
    assert!(found == expected);
    assert_eq!(origins(&metrics), [2, 0, 0]);
    // Nor in a session without the directory.
    let without = world.limited().await;
    assert_eq!(origins(&measured(&without, ALL).await.1), [2, 0, 0]);
    assert!(states(&without).await.is_empty());
}

/// Extremes are found where the memory pool has a limit: they give way.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_limited_memory_finds_them() {
    let random = &mut Random::from_seed(2);
    let world = World::new(1 << 30, random_ranges(random, 400_000, 200));
    world.write("a", &values(random, &DataType::Int32, 400_000));
    settle();
    let expected = world.expected().await;
    for origin in ["indexes_built=2", "index_loaded=2"] {
        let pool = Arc::new(GreedyMemoryPool::new(1_200_000));
        let ctx = session_of_pool(SessionConfig::new(), pool);
        set(&ctx, "rmq.engine", "cpu");
        let ctx = world.over(ctx, world.data.path()).await;
        let directory = world.indexes.path().display().to_string();
        set(&ctx, "rmq.index_directory", &directory);
        let plan = run(&ctx, &format!("EXPLAIN ANALYZE {ALL}")).await;
        let plan = format!("{:?}", plan.expect("a plan"));
        assert!(plan.contains(origin), "{plan}");
        written(&ctx).await;
        assert!(measured(&ctx, ALL).await.0 == expected);
    }
}

/// Files that are written anew, with the size and time of the old one or not, are added and go, in random order.
#[tokio::test(flavor = "multi_thread")]
async fn changed_files_have_new_answers() {
    for mut random in runs("persisted columns of changed files", &[]) {
        let limit = [VALUES, CHUNKS][random.below(2)];
        let world = World::of_integers(&mut random, limit);
        settle();
        let mut loaded = 0;
        for _ in 0..60 {
            match random.below(11) {
                0 | 1 => {
                    let name = ["a", "b", "c"][random.below(3)];
                    let path = world.data.path().join(format!("{name}.parquet"));
                    let old = fs::metadata(&path).and_then(|old| old.modified());
                    // Often of the same size.
                    let least = random.below(1 << 30) as i32;
                    let column = (0..10_000).map(|i| least + i % 97);
                    world.write(name, &(Arc::new(Int32Array::from_iter_values(column)) as _));
                    if let Ok(old) = old {
                        let file = fs::File::options().write(true).open(&path);
                        file.and_then(|file| file.set_modified(old))
                            .expect("a time");
                    }
                }
                2 => {
                    let _ = fs::remove_file(world.data.path().join("c.parquet"));
                }
                3 => {
                    let [a, b, c] =
                        ["a.parquet", "b.parquet", "swap"].map(|n| world.data.path().join(n));
                    for (from, to) in [(&a, &c), (&b, &a), (&c, &b)] {
                        fs::rename(from, to).expect("a file");
                    }
                }
                4 => settle(),
                _ => {
                    let expected = world.expected().await;
                    let ctx = world.process().await;
                    let (found, metrics) = measured(&ctx, ALL).await;
                    assert!(found == expected);
                    loaded += origins(&metrics)[2];
                    if random.below(2) == 0 {
                        written(&ctx).await;
                    }
                }
            }
        }
        println!("{loaded} loaded with the limit {limit}");
        // Those of new versions take the places of the old ones.
        assert!(files(world.indexes.path()).len() <= world.files_of_column());
    }
}

/// A table of these types over files.
async fn declared(world: &World, columns: &str, location: &Path) -> SessionContext {
    let ctx = cpu_session();
    let sql = format!(
        "CREATE EXTERNAL TABLE t ({columns}) STORED AS PARQUET LOCATION '{}'",
        location.display()
    );
    run(&ctx, &sql).await.expect(&sql);
    ranges(&ctx, &world.bounds, &[]);
    ctx
}

/// Tables over the same files that read them as other types, have other columns, or only some of the files.
#[tokio::test(flavor = "multi_thread")]
async fn tables_over_the_same_files_have_their_own() {
    for limit in [VALUES, 15_000] {
        other_tables(World::of_integers(&mut Random::from_seed(3), limit)).await;
    }
}

async fn other_tables(world: World) {
    settle();
    let one = world.data.path().join("a.parquet");
    let tables = [
        ("v INT", world.data.path()),
        ("v BIGINT", world.data.path()),
        ("v DOUBLE", world.data.path()),
        ("v SMALLINT", world.data.path()),
        ("v DECIMAL(12, 1)", world.data.path()),
        ("w BIGINT, v INT", world.data.path()),
        ("v BIGINT, w INT", world.data.path()),
        ("v INT", &one),
    ];
    // The last ones have overwritten the one of the same name.
    for is_found in [false, true] {
        for (number, (columns, location)) in tables.into_iter().enumerate() {
            let free = declared(&world, columns, location).await;
            let ctx = declared(&world, columns, location).await;
            set(&ctx, "rmq.index_memory_limit", &world.limit.to_string());
            let directory = world.indexes.path().display().to_string();
            set(&ctx, "rmq.index_directory", &directory);
            let expected = run(&free, ALL).await;
            let found = run(&ctx, ALL).await;
            match (expected, found) {
                (Ok(expected), Ok(found)) => assert!(found == expected, "{columns}"),
                // Of a value that the type does not have.
                (Err(_), Err(_)) => continue,
                (expected, found) => panic!("{columns}: {expected:?} {found:?}"),
            }
            let is_shared = number == 0 || number == tables.len() - 1;
            let state = if is_found && !is_shared {
                "loaded"
            } else {
                "written"
            };
            assert_eq!(states(&ctx).await, [state], "{columns} {location:?}");
        }
    }
}

/// The same files in another order are another column.
#[tokio::test(flavor = "multi_thread")]
async fn files_in_another_order_are_another_version() {
    for limit in [VALUES, CHUNKS] {
        other_orders(World::of_integers(&mut Random::from_seed(4), limit)).await;
    }
}

async fn other_orders(world: World) {
    let other = tempfile::tempdir().expect("a folder");
    let column = values(&mut Random::from_seed(5), &DataType::Int32, 9_000);
    write(&other.path().join("a.parquet"), &column, (6_000, 501));
    settle();
    let table = async |ctx: SessionContext, folders: [&Path; 2]| {
        let urls = folders.map(|folder| {
            ListingTableUrl::parse(format!("{}/", folder.display())).expect("a folder")
        });
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()));
        let field = Field::new("v", DataType::Int32, true);
        let config = ListingTableConfig::new_with_multi_paths(urls.to_vec())
            .with_listing_options(options)
            .with_schema(Arc::new(Schema::new(vec![field])));
        let table = ListingTable::try_new(config).expect("a table");
        ctx.register_table("t", Arc::new(table)).expect("t");
        ranges(&ctx, &world.bounds, &[]);
        ctx
    };
    for folders in [
        [world.data.path(), other.path()],
        [other.path(), world.data.path()],
        [world.data.path(), world.data.path()],
        [world.data.path(), other.path()],
    ] {
        let expected = measured(&table(cpu_session(), folders).await, ALL).await.0;
        for round in 0..2 {
            let ctx = table(cpu_session(), folders).await;
            set(&ctx, "rmq.index_memory_limit", &world.limit.to_string());
            let directory = world.indexes.path().display().to_string();
            set(&ctx, "rmq.index_directory", &directory);
            let (found, metrics) = measured(&ctx, ALL).await;
            assert!(found == expected);
            // A table lists its files by their paths, whatever the order of its folders.
            assert!(round == 0 || origins(&metrics)[2] == 2, "{metrics:?}");
            written(&ctx).await;
        }
    }
}

/// Bytes changed, files cut to every length, swapped, and replaced by others.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_ignored() {
    for mut random in runs("damaged files of columns", &[]) {
        damaged(World::of_integers(&mut random, CHUNKS), &mut random).await;
        let world = World::new(VALUES, random_ranges(&mut random, 600, 100));
        for name in ["a", "b"] {
            world.write(name, &values(&mut random, &DataType::Int32, 300));
        }
        damaged(world, &mut random).await;
    }
}

async fn damaged(world: World, random: &mut Random) {
    settle();
    let expected = world.expected().await;
    let first = world.process().await;
    measured(&first, ALL).await;
    assert_eq!(states(&first).await, ["written"]);
    let whole = files(world.indexes.path()).into_iter();
    let whole: Vec<_> = whole
        .map(|file| (file.clone(), fs::read(file).expect("a file")))
        .collect();
    assert_eq!(whole.len(), world.files_of_column());
    let (file, bytes) = &whole[random.below(whole.len())];
    let name = file.display().to_string();
    println!("{} bytes", bytes.len());
    // One process: each new table looks for its index anew.
    let ctx = world.process().await;
    let check = async |damaged: &[u8], what: &str| {
        let before = warnings(&name).len();
        fs::write(file, damaged).expect("a file");
        run(&ctx, "DROP TABLE t").await.expect("t");
        external(&ctx, world.data.path()).await;
        let (found, metrics) = measured(&ctx, ALL).await;
        assert!(found == expected, "{what}");
        let is_whole = damaged == bytes;
        let of_others = 2 - 2 / whole.len();
        let loaded = if is_whole { 2 } else { of_others };
        assert_eq!(origins(&metrics)[2], loaded, "{what}");
        written(&ctx).await;
        // It has been written anew.
        assert!(fs::read(file).expect("a file") == *bytes, "{what}");
        warnings(&name).len() > before
    };
    // The tests of the format change all bytes.
    let step = if is_usual() { 50 + random.below(50) } else { 1 };
    for at in (0..bytes.len()).step_by(step) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << random.below(8);
        assert!(check(&damaged, &format!("byte {at}")).await, "byte {at}");
    }
    for _ in 0..20 {
        let len = random.below(bytes.len());
        assert!(check(&bytes[..len], "cut short").await);
    }
    assert!(check(&[bytes.as_slice(), b"x"].concat(), "a byte more").await);
    assert!(check(b"some text", "text").await);
    if let Some((_, other)) = whole.iter().find(|(other, _)| other != file) {
        check(other, "that of the other direction").await;
    }
    assert!(!check(bytes, "as it was").await);
}

/// A directory that can't be made or written costs a warning, not the query.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_written_is_a_warning() {
    for limit in [VALUES, CHUNKS] {
        not_written(World::of_integers(&mut Random::from_seed(1), limit)).await;
    }
}

async fn not_written(world: World) {
    settle();
    let expected = world.expected().await;
    for (directory, fails) in unwritable(world.indexes.path()) {
        let ctx = world.process_in(&directory).await;
        for _ in 0..2 {
            assert!(measured(&ctx, ALL).await.0 == expected);
        }
        if fails {
            assert_eq!(states(&ctx).await, ["failed"], "{directory:?}");
            let text = format!("rmq.index_directory = '{}'", directory.display());
            assert!(!warnings(&text).is_empty(), "{text}");
        }
    }
}

/// Several sessions write the same files at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_directory() {
    for limit in [VALUES, CHUNKS] {
        shared(World::of_integers(&mut Random::from_seed(1), limit)).await;
    }
}

async fn shared(world: World) {
    let world = Arc::new(world);
    settle();
    let expected = world.expected().await;
    let tasks = (0..4).map(|_| {
        let (world, expected) = (Arc::clone(&world), expected.clone());
        tokio::spawn(async move {
            for _ in 0..5 {
                let ctx = world.process().await;
                assert!(measured(&ctx, ALL).await.0 == expected);
                written(&ctx).await;
                if let Some(file) = files(world.indexes.path()).first() {
                    // Any file can be deleted at any time.
                    let _ = fs::remove_file(file);
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("rows");
    }
    for loaded in [None, Some(2)] {
        let ctx = world.process().await;
        let (found, metrics) = measured(&ctx, ALL).await;
        assert!(found == expected);
        assert!(loaded.is_none_or(|loaded| origins(&metrics)[2] == loaded));
        written(&ctx).await;
    }
}

/// A file that has just been written may change again unseen.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_changed_is_not_written() {
    for limit in [VALUES, CHUNKS] {
        let world = World::new(limit, vec![(Some(3), Some(9_000))]);
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        world.write("a", &column);
        let started = std::time::Instant::now();
        let ctx = world.process().await;
        let (_, metrics) = measured(&ctx, ALL).await;
        let are_chunks = metrics.contains_key("index_chunks");
        assert_eq!(are_chunks, limit == CHUNKS, "{metrics:?}");
        let is_written = !states(&ctx).await.is_empty();
        assert!(!is_written || started.elapsed().as_secs() >= 2);
        assert!(is_written || files(world.indexes.path()).is_empty());
    }
}
