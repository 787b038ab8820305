//! The values of columns that fit in memory in the files of `rmq.index_directory`: of all types, of some of the columns
//! of a query, with less memory, on devices. What both kinds of files have in common is in `persisted_columns`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_testing::{Random, runs};
use tokio::runtime::Handle;

use crate::fake::Fake;
use crate::larger_than_memory::{ALL, measured, random_ranges, values, write_column};
use crate::persisted::{files, states, written};
use crate::persisted_columns::{VALUES, World, origins};
use crate::properties::{array, types};
use crate::range_join::lines;
use crate::staleness::settle;
use crate::support::{cpu_session, error, run, session_of_pool, set};

/// Random values of any type, with NULLs, NaN and ties.
fn of_type(random: &mut Random, data_type: &DataType, rows: usize) -> ArrayRef {
    let nulls = [0, 3, 40][random.below(3)];
    let bits = (0..rows).map(|_| (random.below(100) >= nulls).then(|| random.next()));
    let bits: Vec<Option<u64>> = bits.collect();
    array(data_type, &bits, random.below(2) == 0)
}

/// Writes columns to a Parquet file; false if its format does not have their types.
fn write_columns(path: &Path, columns: &[(&str, ArrayRef)]) -> bool {
    let fields = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.iter().map(|(_, column)| Arc::clone(column));
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays.collect());
    let file = File::create(path).expect("a new file");
    let Ok(mut writer) = ArrowWriter::try_new(file, schema, None) else {
        return false;
    };
    writer.write(&batch.expect("columns")).is_ok() && writer.close().is_ok()
}

/// A value of each batch may not fit into one dictionary of these.
fn is_narrow(data_type: &DataType) -> bool {
    let DataType::Dictionary(key, _) = data_type else {
        return false;
    };
    key.primitive_width() < Some(4)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn values_of_all_types_are_found() {
    for mut random in runs("persisted values", &[]) {
        let mut worlds = vec![];
        for data_type in types() {
            let sizes: Vec<usize> = (0..3)
                .map(|_| [0, 1, 500, 9_000][random.below(4)])
                .collect();
            let rows = sizes.iter().sum();
            let world = World::new(VALUES, random_ranges(&mut random, rows, 300));
            let mut are_written = true;
            for (number, rows) in sizes.iter().enumerate() {
                let path = world.data.path().join(format!("{number}.parquet"));
                let column = of_type(&mut random, &data_type, *rows);
                are_written &= write_columns(&path, &[("v", column)]);
            }
            if are_written {
                worlds.push((world, format!("{sizes:?} rows of {data_type}")));
            }
        }
        println!("{} types", worlds.len());
        assert!(worlds.len() >= 35);
        settle();
        for (world, what) in worlds {
            for force_views in [true, false] {
                let session = async |ctx: SessionContext| {
                    let views = "datafusion.execution.parquet.schema_force_view_types";
                    set(&ctx, views, &force_views.to_string());
                    world.over(ctx, world.data.path()).await
                };
                let expected = measured(&session(cpu_session()).await, ALL).await.0;
                let table = session(cpu_session()).await;
                let schema = table.table_provider("t").await.expect("t").schema();
                let is_narrow = is_narrow(schema.field(0).data_type());
                for round in 0..3 {
                    let ctx = session(cpu_session()).await;
                    let directory = world.indexes.path().display().to_string();
                    set(&ctx, "rmq.index_directory", &directory);
                    let (found, metrics) = measured(&ctx, ALL).await;
                    assert!(found == expected, "{what}");
                    if is_narrow {
                        assert_eq!(origins(&metrics), [2, 0, 0], "{what}");
                        assert!(states(&ctx).await.is_empty(), "{what}");
                        continue;
                    }
                    // Without views many types are the same.
                    let is_found = round > 0 || !force_views && origins(&metrics)[2] > 0;
                    let (origin, state) = if is_found {
                        ([0, 0, 2], "loaded")
                    } else {
                        ([2, 0, 0], "written")
                    };
                    assert_eq!(origins(&metrics), origin, "{what}");
                    assert_eq!(states(&ctx).await, [state], "{what}");
                    assert!(!is_found || metrics["rows_read"] == 0, "{what}");
                    let (found, metrics) = measured(&ctx, ALL).await;
                    assert!(found == expected, "{what}");
                    assert_eq!(origins(&metrics), [0, 2, 0], "{what}");
                }
            }
        }
    }
}

/// Columns of so many rows that several tasks read them, and several threads their file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_columns_are_found() {
    let random = &mut Random::new("large persisted values");
    let mut worlds = vec![];
    for data_type in [DataType::Float64, DataType::Int64, DataType::Utf8View] {
        let sizes = [150_000, 1, 0, 330_011, 20_000];
        let world = World::new(VALUES, random_ranges(random, 500_012, 500));
        for (number, rows) in sizes.into_iter().enumerate() {
            let column = match data_type {
                DataType::Float64 => values(random, &data_type, rows),
                _ => of_type(random, &data_type, rows),
            };
            // A file without the column has NULLs.
            let name = if number == 4 { "w" } else { "v" };
            let path = world.data.path().join(format!("{number}.parquet"));
            // The writer of Parquet files calls itself for each row group of a batch.
            let sizes = (1_000 + random.below(50_000), 1 + random.below(5_000));
            write_column(&path, name, &column, sizes);
        }
        worlds.push((world, data_type));
    }
    settle();
    for (world, data_type) in worlds {
        let expected = world.expected().await;
        for (partitions, threads) in [(7, 0), (1, 1), (3, 4)] {
            let config = SessionConfig::new().with_target_partitions(partitions);
            let ctx = SessionContext::new_with_config(config);
            datafusion_rmq::register(&ctx);
            set(&ctx, "rmq.engine", "cpu");
            set(&ctx, "rmq.build_threads", &threads.to_string());
            let ctx = world.over(ctx, world.data.path()).await;
            let directory = world.indexes.path().display().to_string();
            set(&ctx, "rmq.index_directory", &directory);
            let (found, metrics) = measured(&ctx, ALL).await;
            assert!(found == expected, "{data_type}");
            let loaded = if partitions == 7 { 0 } else { 2 };
            assert_eq!(origins(&metrics)[2], loaded, "{data_type}");
            written(&ctx).await;
        }
    }
}

const OF_V: &str = "SELECT range_min('t.v', l, r), range_argmax('t.v', l, r) FROM q";

const OF_ALL: &str = "SELECT range_min('t.v', l, r), range_max('t.w', l, r), range_argmin('t.w', l, r), \
                      range_max('t.x', l, r) FROM q";

/// Three columns, of which some queries need one.
fn of_three_columns(random: &mut Random) -> World {
    let world = World::new(VALUES, random_ranges(random, 9_000, 200));
    for name in ["a", "b", "c"] {
        let v = of_type(random, &DataType::Float64, 3_000);
        let w = of_type(random, &DataType::Utf8, 3_000);
        let x = of_type(random, &DataType::Float64, 3_000);
        let path = world.data.path().join(format!("{name}.parquet"));
        assert!(write_columns(&path, &[("v", v), ("w", w), ("x", x)]));
    }
    world
}

/// The columns of a query that have files are read from these, and the others from the table.
#[tokio::test(flavor = "multi_thread")]
async fn each_column_has_its_own_file() {
    let world = of_three_columns(&mut Random::from_seed(1));
    settle();
    let free = world.free().await;
    let first = world.process().await;
    assert!(measured(&first, OF_V).await.0 == measured(&free, OF_V).await.0);
    written(&first).await;
    assert_eq!(files(world.indexes.path()).len(), 1);
    let expected = measured(&free, OF_ALL).await.0;
    let next = world.process().await;
    let (found, metrics) = measured(&next, OF_ALL).await;
    assert!(found == expected);
    assert_eq!(origins(&metrics), [3, 0, 1]);
    assert_eq!(metrics["rows_read"], 9_000);
    written(&next).await;
    let shown = "SELECT \"column\", disk FROM rmq_indexes() ORDER BY 1, kind";
    let shown = lines(&[run(&next, shown).await.expect("a list")]);
    assert_eq!(
        shown,
        ["v | loaded", "w | written", "w | written", "x | written"]
    );
    assert_eq!(files(world.indexes.path()).len(), 3);
    let last = world.process().await;
    let (found, metrics) = measured(&last, OF_ALL).await;
    assert!(found == expected);
    assert_eq!((origins(&metrics), metrics["rows_read"]), ([0, 0, 4], 0));
}

/// The second direction finds the file, or that it is being written, and does not write it again.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn both_directions_share_a_file() {
    use std::os::unix::fs::MetadataExt;

    let random = &mut Random::from_seed(2);
    let world = World::new(VALUES, random_ranges(random, 10_000, 50));
    world.write("a", &of_type(random, &DataType::Int64, 10_000));
    settle();
    let expected = world.expected().await;
    let first = world.process().await;
    measured(&first, ALL).await;
    written(&first).await;
    let file = &files(world.indexes.path())[0];
    fs::remove_file(file).expect("a file");
    // A writer looks at what others may have left, so it is not done when the second direction is asked.
    for number in 0..20_000 {
        let name = format!("0123456789abcdef0123456789abcdef.1-{number:x}.tmp");
        File::create(world.indexes.path().join(name)).expect("a file");
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each file that is written replaces the one before.
        let seen = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !ended.load(Relaxed) {
                seen.extend(fs::metadata(file).map(|file| file.ino()));
                std::thread::sleep(Duration::from_micros(100));
            }
            seen
        });
        let mut all = vec![];
        tokio::task::block_in_place(|| {
            Handle::current().block_on(async {
                for _ in 0..3 {
                    let ctx = world.process().await;
                    for (direction, column) in [("min", 0), ("max", 2)] {
                        let sql = format!("SELECT range_{direction}('t.v', l, r) FROM q");
                        let (found, metrics) = measured(&ctx, &sql).await;
                        assert!(found.column(0) == expected.column(column));
                        all.push(origins(&metrics)[2]);
                    }
                    written(&ctx).await;
                }
            });
        });
        ended.store(true, Relaxed);
        println!("loaded: {all:?}");
        assert_eq!((all[0], &all[2..]), (0, &[1; 4][..]));
        assert_eq!(seen.join().expect("no panic").len(), 1);
    });
}

/// With less memory than the column takes, chunks are read instead; with a pool that has it, the values.
#[tokio::test(flavor = "multi_thread")]
async fn less_memory_gives_the_same_answers() {
    let random = &mut Random::from_seed(4);
    let world = World::new(VALUES, random_ranges(random, 40_000, 200));
    world.write("a", &of_type(random, &DataType::Int64, 40_000));
    settle();
    let expected = world.expected().await;
    let first = world.process().await;
    assert!(measured(&first, ALL).await.0 == expected);
    assert_eq!(states(&first).await, ["written"]);
    let directory = world.indexes.path().display().to_string();
    let (mut chunks, mut loaded) = (0, 0);
    for bytes in (40_000..1_600_000).step_by(60_000) {
        for of_pool in [false, true] {
            let ctx = if of_pool {
                let pool = Arc::new(GreedyMemoryPool::new(bytes));
                let ctx = session_of_pool(SessionConfig::new(), pool);
                set(&ctx, "rmq.engine", "cpu");
                world.over(ctx, world.data.path()).await
            } else {
                let ctx = world.free().await;
                set(&ctx, "rmq.index_memory_limit", &bytes.to_string());
                ctx
            };
            set(&ctx, "rmq.index_directory", &directory);
            // A pool that is too small for a block of rows is an error, with a directory or not.
            let Ok(found) = run(&ctx, ALL).await else {
                assert!(of_pool, "{bytes}");
                set(&ctx, "rmq.index_directory", "");
                let without = error(&ctx, ALL).await;
                assert!(without.contains("Resources exhausted"), "{without}");
                continue;
            };
            assert!(found == expected, "{bytes}");
            let plan = run(&ctx, &format!("EXPLAIN ANALYZE {ALL}")).await;
            let plan = format!("{:?}", plan.expect("a plan"));
            chunks += usize::from(plan.contains("index_chunks="));
            loaded += usize::from(states(&ctx).await == ["loaded"]);
        }
    }
    println!("{chunks} times chunks, {loaded} times loaded");
    assert!(chunks > 5 && loaded > 5);
    // The file of values is still there, beside those of chunks.
    assert_eq!(files(world.indexes.path()).len(), 3);
    let next = world.process().await;
    assert_eq!(origins(&measured(&next, ALL).await.1), [0, 0, 2]);
}

/// Strings do not stay in files: too little memory is the error that it is without the directory.
#[tokio::test(flavor = "multi_thread")]
async fn strings_need_their_memory() {
    let world = of_three_columns(&mut Random::from_seed(5));
    settle();
    let first = world.process().await;
    measured(&first, OF_ALL).await;
    assert_eq!(states(&first).await, ["written"]);
    let sql = "SELECT range_max('t.w', 0, 9)";
    for limit in ["10000", "100000"] {
        let without = world.free().await;
        let with = world.process().await;
        for ctx in [&without, &with] {
            set(ctx, "rmq.index_memory_limit", limit);
        }
        let (without, with) = (error(&without, sql).await, error(&with, sql).await);
        assert!(without.contains("raise it"), "{without}");
        assert_eq!(with, without);
    }
}

/// Nothing tells another process that a view or a subquery has the same rows.
#[tokio::test(flavor = "multi_thread")]
async fn views_and_subqueries_are_not_written() {
    let world = of_three_columns(&mut Random::from_seed(6));
    settle();
    let free = world.free().await;
    let define = async |ctx: &SessionContext| {
        for sql in [
            "CREATE VIEW u AS SELECT concat(w, 'x') AS w FROM t WHERE v > 0 ORDER BY w",
            "CREATE TABLE m AS SELECT w FROM t ORDER BY w",
        ] {
            run(ctx, sql).await.expect(sql);
        }
    };
    define(&free).await;
    for _ in 0..2 {
        let ctx = world.process().await;
        define(&ctx).await;
        for table in ["u", "m"] {
            let sql = format!(
                "SELECT range_min('{table}.w', l, r), range_argmax('{table}.w', l, r) FROM q"
            );
            let expected = run(&free, &sql).await.expect(&sql);
            assert!(run(&ctx, &sql).await.expect(&sql) == expected);
        }
        written(&ctx).await;
        assert!(files(world.indexes.path()).is_empty());
    }
}

/// Rows that are added are indexed by this process alone. The next one writes the whole column anew.
#[tokio::test(flavor = "multi_thread")]
async fn added_rows_are_part_of_the_next_file() {
    let random = &mut Random::from_seed(7);
    let world = World::of_integers(random, VALUES);
    settle();
    let first = world.process().await;
    run(&first, ALL).await.expect(ALL);
    written(&first).await;
    let contents = || fs::read(&files(world.indexes.path())[0]).expect("a file");
    let before = contents();
    world.write("c", &values(random, &DataType::Int32, 700));
    settle();
    let expected = world.expected().await;
    run(
        &first,
        "SET datafusion.runtime.list_files_cache_limit = '0K'",
    )
    .await
    .expect("an option");
    let (found, metrics) = measured(&first, ALL).await;
    assert!(found == expected);
    assert_eq!(metrics.get("indexes_extended"), Some(&2), "{metrics:?}");
    written(&first).await;
    assert!(contents() == before);
    for origin in [[2, 0, 0], [0, 0, 2]] {
        let ctx = world.process().await;
        let (found, metrics) = measured(&ctx, ALL).await;
        assert!(found == expected);
        assert_eq!(origins(&metrics), origin);
        written(&ctx).await;
    }
    assert_eq!(files(world.indexes.path()).len(), 1);
    // What is loaded can be extended, too.
    let ctx = world.process().await;
    assert_eq!(origins(&measured(&ctx, ALL).await.1), [0, 0, 2]);
    world.write("d", &values(random, &DataType::Int32, 900));
    let expected = world.expected().await;
    run(&ctx, "SET datafusion.runtime.list_files_cache_limit = '0K'")
        .await
        .expect("an option");
    let (found, metrics) = measured(&ctx, ALL).await;
    assert!(found == expected);
    assert_eq!(metrics.get("indexes_extended"), Some(&2), "{metrics:?}");
}

/// Devices get the values of the file, which they answer from, and the CPU after they fail.
#[tokio::test(flavor = "multi_thread")]
async fn devices_have_the_values_of_files() {
    let world = World::of_integers(&mut Random::from_seed(8), VALUES);
    settle();
    let expected = world.expected().await;
    let directory = world.indexes.path().display().to_string();
    for state in ["written", "loaded", "loaded"] {
        let fake = Arc::new(Fake::default());
        let ctx = fake.session(&[("rmq.engine", "auto"), ("rmq.index_directory", &directory)]);
        let ctx = world.over(ctx, world.data.path()).await;
        let (found, metrics) = measured(&ctx, ALL).await;
        assert!(found == expected);
        assert!(fake.built.load(Relaxed) > 0, "no index on a device");
        assert_eq!(origins(&metrics)[2], if state == "loaded" { 2 } else { 0 });
        assert_eq!(states(&ctx).await, [state]);
        fake.answer_fails_at
            .store(fake.batches.lock().expect("batches").len() + 1, Relaxed);
        assert!(measured(&ctx, ALL).await.0 == expected);
    }
}

/// CREATE INDEX finds the values, and has them written.
#[tokio::test(flavor = "multi_thread")]
async fn named_indexes_have_the_values_of_files() {
    let world = World::of_integers(&mut Random::from_seed(9), VALUES);
    settle();
    let expected = world.expected().await;
    for state in ["written", "loaded"] {
        let ctx = world.process().await;
        run(&ctx, "CREATE INDEX lowest ON t (v)")
            .await
            .expect("an index");
        assert_eq!(states(&ctx).await, [state]);
        let (found, metrics) = measured(&ctx, ALL).await;
        assert!(found == expected);
        assert_eq!(origins(&metrics), [0, 2, 0]);
    }
}

/// Files without rows.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_column_has_no_extremes() {
    let world = World::new(VALUES, vec![(Some(0), Some(9))]);
    let empty: ArrayRef = Arc::new(Int64Array::from(Vec::<i64>::new()));
    world.write("a", &empty);
    settle();
    let expected = world.expected().await;
    for _ in 0..2 {
        let ctx = world.process().await;
        assert!(measured(&ctx, ALL).await.0 == expected);
        written(&ctx).await;
    }
}
