//! Range functions over Parquet files whose columns do not fit in memory: the extremes of chunks are kept, and rows are
//! read at the edges of ranges. Answers are those of a session without a limit.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` repeats one case; `RMQ_CASES` sets the number of cases.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::compute::{cast, concat, concat_batches};
use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::physical_plan::RangeLookupExec;
use futures::StreamExt;
use rmq_testing::{Random, cases};

use crate::range_join::lines;
use crate::staleness::{external, settle};
use crate::support::{bigint, context_of_pool, cpu_session, error, register, run, set};

/// Columns that fit, of enough rows to be read by several tasks, whose rows begin and end within row groups and pages.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_fit_are_read_by_several_tasks() {
    let mut random = Random::new("columns read by several tasks");
    let folder = tempfile::tempdir().expect("a folder");
    let mut parts = vec![];
    for (number, rows) in [150_000, 1, 0, 130_011, 20_000].into_iter().enumerate() {
        let column = values(&mut random, &DataType::Float64, rows);
        let sizes = (1 + random.below(50_000), 1 + random.below(5_000));
        write(
            &folder.path().join(format!("{number}.parquet")),
            &column,
            sizes,
        );
        parts.push(column);
    }
    settle();
    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
    let whole = concat(&parts).expect("one column");
    let bounds = random_ranges(&mut random, whole.len(), 2000);
    let plain = cpu_session();
    register(&plain, "t", &[("v", whole)], &[]);
    ranges(&plain, &bounds, &[]);
    let expected = run(&plain, ALL).await.expect("answers");
    for partitions in [1, 2, 7, 16] {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        external(&ctx, folder.path()).await;
        ranges(&ctx, &bounds, &[]);
        let plan = ctx.sql(ALL).await.expect("a query");
        let plan = plan.create_physical_plan().await.expect("a plan");
        let answers = collect(Arc::clone(&plan), ctx.task_ctx()).await;
        let answers = concat_batches(&expected.schema(), &answers.expect("answers"));
        assert_eq!(answers.expect("one batch"), expected, "{partitions}");
    }
    // Memory that is too small is an error, or leaves the rows in files, also half way.
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    external(&ctx, folder.path()).await;
    ranges(&ctx, &bounds, &[]);
    set(&ctx, "rmq.index_memory_limit", "1M");
    let answers = run(&ctx, ALL).await.expect("answers");
    assert_eq!(answers, expected);
}

/// The rows of a chunk, at whose ends ranges begin and end more often than elsewhere.
const CHUNK: i64 = 4096;

/// The default number of cases.
const CASES: usize = 16;

/// Seeds of cases that failed in the past.
const FAILED: [u64; 0] = [];

pub const ALL: &str = "SELECT range_min('t.v', l, r), range_argmin('t.v', l, r), range_max('t.v', l, r), \
                   range_argmax('t.v', l, r) FROM q";

/// Types whose columns may stay in files.
pub fn types() -> [DataType; 9] {
    [
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Timestamp(TimeUnit::Millisecond, Some("Europe/Zurich".into())),
        DataType::Decimal128(20, 2),
        DataType::Date32,
        DataType::Int16,
        DataType::Boolean,
    ]
}

/// Values with many ties, runs of NULLs and, of floats, those of special order.
pub fn values(random: &mut Random, data_type: &DataType, rows: usize) -> ArrayRef {
    let (mut run, mut left) = (0, 0);
    let domain = [3, 1_000, 1_000_000][random.below(3)];
    let numbers = (0..rows).map(|_| {
        if left == 0 {
            run = random.below(4);
            left = random.below(9_000);
        } else {
            left -= 1;
        }
        let number = random.below(domain) as i64 - 1;
        let is_null = run == 0 || run == 1 && random.below(3) == 0;
        (!is_null).then_some(number)
    });
    let numbers: Vec<Option<i64>> = numbers.collect();
    let float = |number: i64| match number {
        -1 => [f64::NAN, -f64::NAN][rows % 2],
        0 => -0.0,
        1 => 0.0,
        2 => f64::INFINITY,
        n => n as f64 / 8.0,
    };
    let floats = numbers.iter().map(|number| number.map(float));
    match data_type {
        DataType::Float64 => Arc::new(floats.collect::<Float64Array>()),
        DataType::Float32 => {
            let floats = floats.map(|value| value.map(|value| value as f32));
            Arc::new(floats.collect::<Float32Array>())
        }
        DataType::Date32 => {
            let days = cast(&Int64Array::from(numbers), &DataType::Int32).expect("small numbers");
            cast(&days, data_type).expect("days")
        }
        _ => cast(&Int64Array::from(numbers), data_type).expect("small numbers"),
    }
}

/// Writes the column `v` as a Parquet file with small row groups and pages.
pub fn write(path: &Path, column: &ArrayRef, sizes: (usize, usize)) {
    write_column(path, "v", column, sizes);
}

pub fn write_column(
    path: &Path,
    name: &str,
    column: &ArrayRef,
    (in_group, in_page): (usize, usize),
) {
    let field = Field::new(name, column.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(column)]);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(in_group))
        .set_data_page_row_count_limit(in_page)
        .set_write_batch_size(in_page.min(1024))
        // Without it, row groups are read as a whole.
        .set_offset_index_disabled(in_page % 5 == 0)
        .set_statistics_enabled(if in_page % 5 == 0 {
            EnabledStatistics::None
        } else {
            EnabledStatistics::Page
        })
        .build();
    let file = File::create(path).expect("a new file");
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).expect("a writer");
    writer.write(&batch.expect("one column")).expect("rows");
    writer.close().expect("a footer");
}

/// Registers ranges as the table `q`.
pub fn ranges(ctx: &SessionContext, bounds: &[(Option<i64>, Option<i64>)], batches: &[usize]) {
    let column = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let left = column(bounds.iter().map(|bounds| bounds.0).collect());
    let right = column(bounds.iter().map(|bounds| bounds.1).collect());
    ctx.deregister_table("q").expect("the name is valid");
    register(ctx, "q", &[("l", left), ("r", right)], batches);
}

pub fn random_ranges(
    random: &mut Random,
    rows: usize,
    ranges: usize,
) -> Vec<(Option<i64>, Option<i64>)> {
    let last = rows as i64;
    let bound = |random: &mut Random| match random.below(8) {
        0 => [i64::MIN, -1, 0, last - 1, last, last + 9, i64::MAX][random.below(7)],
        1 | 2 => {
            let chunk = random.below(rows / 4096 + 2) as i64 * CHUNK;
            chunk + random.below(3) as i64 - 1
        }
        _ => random.below(rows + 1) as i64,
    };
    let ranges = (0..ranges).map(|_| {
        let left = bound(random);
        let right = match random.below(3) {
            0 => left.saturating_add(random.below(5_000) as i64 - 20),
            _ => bound(random),
        };
        let ordered = if random.below(10) == 0 {
            (left, right)
        } else {
            (left.min(right), left.max(right))
        };
        let mut or_null = |bound| (random.below(40) > 0).then_some(bound);
        (or_null(ordered.0), or_null(ordered.1))
    });
    ranges.collect()
}

/// The rows of a query, the metrics of its lookup, and the rows that were read for it.
pub async fn measured(ctx: &SessionContext, sql: &str) -> (RecordBatch, HashMap<String, usize>) {
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
    let mut metrics = HashMap::new();
    plan.apply(|node| {
        if let Some(lookup) = node.downcast_ref::<RangeLookupExec>() {
            let of_lookup = lookup.metrics().expect("metrics").aggregate_by_name();
            for metric in of_lookup.iter() {
                let value = metric.value();
                metrics.insert(value.name().to_string(), value.as_usize());
            }
            metrics.insert("rows_read".into(), lookup.index_rows_read());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .expect("no error");
    let rows = concat_batches(&plan.schema(), &batches).expect("batches of one schema");
    (rows, metrics)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_ranges_have_the_answers_of_a_session_without_a_limit() {
    let types = types();
    let mut open = 0;
    for (number, seed) in cases("larger_than_memory", &FAILED, CASES)
        .into_iter()
        .enumerate()
    {
        let random = &mut Random::from_seed(seed);
        let data_type = &types[number % types.len()];
        let folder = tempfile::tempdir().expect("a folder");
        let mut rows = 0;
        for file in 0..=random.below(5) {
            let of_file = [0, 1, 7, 20_000, 60_000, 100_000][random.below(6)];
            let in_group = 500 + random.below(40_000);
            let in_page = 50 + random.below(3_000);
            let column = values(random, data_type, of_file);
            let path = folder.path().join(format!("{file}.parquet"));
            // A file without the column has NULLs.
            let name = if random.below(6) == 0 { "w" } else { "v" };
            write_column(&path, name, &column, (in_group, in_page));
            rows += of_file;
        }
        let column = values(random, data_type, 30_000);
        write(&folder.path().join("9.parquet"), &column, (30_000, 1_000));
        rows += 30_000;

        let asked = random_ranges(random, rows, 1_500);
        let (limited, free) = (cpu_session(), cpu_session());
        let width = data_type.primitive_width().unwrap_or(1);
        let limit = (rows * width).to_string();
        set(&limited, "rmq.index_memory_limit", &limit);
        let batches = [1 + random.below(900), 3];
        for ctx in [&limited, &free] {
            external(ctx, folder.path()).await;
            ranges(ctx, &asked, &batches);
        }
        let (found, metrics) = measured(&limited, ALL).await;
        let (expected, of_free) = measured(&free, ALL).await;
        let what = format!("RMQ_TEST_CASE={seed}: {rows} rows of {data_type}");
        assert_eq!(of_free.get("index_chunks"), None, "{what}");
        let chunks = 2 * rows.div_ceil(4096);
        assert_eq!(metrics.get("index_chunks"), Some(&chunks), "{what}");
        assert_eq!(metrics["index_rows"], 2 * rows, "{what}");
        for (row, range) in asked.iter().enumerate() {
            let (found, expected) = (found.slice(row, 1), expected.slice(row, 1));
            assert_eq!(found, expected, "{what}: range {range:?}");
        }
        open += metrics["boundary_rows_read"];
    }
    assert!(open > 0, "no rows were read");
}

/// A table of 600,000 floats in three files, its folder, and a session with less memory than these need.
async fn floats() -> (tempfile::TempDir, SessionContext) {
    let folder = tempfile::tempdir().expect("a folder");
    let random = &mut Random::from_seed(7);
    for file in 0..3 {
        let column = (0..200_000).map(|_| Some(random.below(1 << 30) as f32));
        let column: ArrayRef = Arc::new(column.collect::<Float32Array>());
        let path = folder.path().join(format!("{file}.parquet"));
        write(&path, &column, (100_000, 5_001));
    }
    let pool = Arc::new(GreedyMemoryPool::new(3_000_000));
    let ctx = context_of_pool(SessionConfig::new().with_target_partitions(4), pool);
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.engine", "cpu");
    external(&ctx, folder.path()).await;
    (folder, ctx)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn later_queries_read_the_edges_of_ranges_alone() {
    let (folder, ctx) = floats().await;
    settle();
    let near: Vec<_> = (0..1_000).map(|i| (Some(i), Some(i + 300_000))).collect();
    ranges(&ctx, &near, &[]);
    let sql = "SELECT range_min('t.v', l, r) FROM q";
    let (first, metrics) = measured(&ctx, sql).await;
    assert_eq!(metrics["indexes_built"], 1);
    assert_eq!(metrics["index_chunks"], 147);
    assert!(metrics["rows_read"] >= 600_000, "{metrics:?}");
    assert!(metrics["index_bytes"] < 10_000, "{metrics:?}");

    let (second, metrics) = measured(&ctx, sql).await;
    assert_eq!(first, second);
    assert_eq!(
        (metrics["indexes_built"], metrics["indexes_reused"]),
        (0, 1)
    );
    let read = metrics["boundary_rows_read"];
    assert!(read <= 2 * 5_096, "{read} rows");
    assert_eq!(metrics["rows_read"], read);

    // Whole chunks need no rows, nor do ranges whose extreme is known to be inside.
    ranges(
        &ctx,
        &[(Some(CHUNK), Some(3 * CHUNK - 1)), (Some(-9), None)],
        &[],
    );
    let (_, metrics) = measured(&ctx, sql).await;
    assert_eq!(metrics["rows_read"], 0, "{metrics:?}");
    // One row of each of many chunks.
    let single: Vec<_> = (0..146)
        .map(|i| (Some(i * CHUNK + 5), Some(i * CHUNK + 5)))
        .collect();
    ranges(&ctx, &single, &[]);
    let (_, metrics) = measured(&ctx, sql).await;
    let read = metrics["boundary_rows_read"];
    assert!((140..=146).contains(&read), "{read} rows");

    // EXPLAIN ANALYZE says so.
    let rows = run(&ctx, &format!("EXPLAIN ANALYZE {sql}"))
        .await
        .expect("a plan");
    let shown = format!("{rows:?}");
    assert!(
        shown.contains("6.0e5 rows stay in files, extremes of chunks in memory"),
        "{shown}"
    );
    assert!(shown.contains("boundary_rows_read="), "{shown}");

    // A changed file, and a further one.
    let lowest: ArrayRef = Arc::new(Float32Array::from(vec![-1.0, -2.0, -3.0]));
    for (file, expected) in [("1.parquet", -3.0), ("3.parquet", -3.0)] {
        write(&folder.path().join(file), &lowest, (9, 9));
        ranges(&ctx, &[(Some(0), Some(i64::MAX))], &[]);
        let (found, metrics) = measured(&ctx, sql).await;
        assert_eq!(metrics["indexes_built"], 1);
        let expected: ArrayRef = Arc::new(Float32Array::from(vec![expected]));
        assert_eq!(found.column(0), &expected, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_rows_are_indexed_once_memory_allows() {
    let (folder, _) = floats().await;
    settle();
    let ctx = cpu_session();
    external(&ctx, folder.path()).await;
    let bounds = [(Some(5), Some(9_000)), (Some(3), Some(3))];
    ranges(&ctx, &bounds, &[]);
    let sql = "SELECT range_argmin('t.v', l, r) FROM q";
    let mut found = vec![];
    for (limit, is_in_files, is_built) in [
        ("100K", true, true),
        ("100K", true, false),
        ("50K", true, false),
        ("200K", true, true),
        ("100M", false, true),
        ("100M", false, false),
    ] {
        set(&ctx, "rmq.index_memory_limit", limit);
        let (rows, metrics) = measured(&ctx, sql).await;
        found.push(rows);
        assert_eq!(metrics.contains_key("index_chunks"), is_in_files, "{limit}");
        let built = metrics["indexes_built"];
        assert_eq!(built, usize::from(is_built), "{limit}");
        let threshold = "SELECT range_first_at_most('t.v', 0, 9, 3.0)";
        if is_in_files {
            let message = error(&ctx, threshold).await;
            assert!(message.contains("Resources exhausted"), "{message}");
        } else {
            run(&ctx, threshold).await.expect("it fits");
        }
    }
    assert!(found.iter().all(|rows| rows == &found[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strings_and_thresholds_need_the_column_in_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let texts = (0..100_000).map(|i| Some(format!("text {i}")));
    let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
    write(&folder.path().join("a.parquet"), &texts, (9_000, 1_000));
    let ctx = cpu_session();
    set(&ctx, "rmq.index_memory_limit", "100K");
    external(&ctx, folder.path()).await;
    let message = error(&ctx, "SELECT range_min('t.v', 0, 9)").await;
    assert!(
        message.contains("rmq.index_memory_limit = '100K'"),
        "{message}"
    );

    let (_folder, ctx) = floats().await;
    for call in [
        "range_first_at_most('t.v', 0, 9, 3.0)",
        "range_smallest('t.v', 0, 9, 3)",
    ] {
        let message = error(&ctx, &format!("SELECT {call}, range_min('t.v', 0, 9)")).await;
        assert!(message.contains("Resources exhausted"), "{call}: {message}");
    }
    // In the condition of an outer join, expressions look up in the index.
    let sql = "SELECT count(*) FROM (VALUES (1)) a(x) LEFT JOIN (VALUES (2)) b(y) ON range_min('t.v', x, y) > y";
    let message = error(&ctx, sql).await;
    assert!(message.contains("Resources exhausted"), "{message}");
}

#[tokio::test]
async fn an_index_of_all_rows_gives_way_when_the_table_has_outgrown_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let ctx = cpu_session();
    let add = |file: &str, rows: i64| {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|i| -i)));
        write(&folder.path().join(file), &numbers, (50_000, 1_000));
    };
    add("0.parquet", 20_000);
    external(&ctx, folder.path()).await;
    set(&ctx, "rmq.index_memory_limit", "400K");
    settle();
    ranges(&ctx, &[(Some(5), Some(19_998)), (Some(9), Some(9))], &[]);
    let sql = "SELECT range_min('t.v', l, r) FROM q";
    let (first, metrics) = measured(&ctx, sql).await;
    assert!(!metrics.contains_key("index_chunks"), "{metrics:?}");
    add("1.parquet", 8_000);
    settle();
    let (_, metrics) = measured(&ctx, sql).await;
    assert_eq!(metrics.get("indexes_extended"), Some(&1), "{metrics:?}");
    add("2.parquet", 200_000);
    settle();
    for is_built in [1, 0] {
        let (found, metrics) = measured(&ctx, sql).await;
        assert_eq!(found, first);
        assert_eq!(metrics["indexes_built"], is_built);
        assert_eq!(metrics["index_rows"], 228_000);
        assert!(metrics.contains_key("index_chunks"), "{metrics:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_changes_between_batches_is_an_error() {
    let (folder, ctx) = floats().await;
    let odd: Vec<_> = (0..400)
        .map(|i| (Some(i * 1_000 + 1), Some(i * 1_000 + 7)))
        .collect();
    ranges(&ctx, &odd, &[3; 100]);
    let plan = ctx
        .sql("SELECT range_min('t.v', l, r) FROM q")
        .await
        .expect("a query");
    let plan = plan.create_physical_plan().await.expect("a plan");
    assert_eq!(plan.output_partitioning().partition_count(), 1);
    let mut batches = execute_stream(plan, ctx.task_ctx()).expect("a stream");
    batches.next().await.expect("a batch").expect("no error");
    let file = folder.path().join("0.parquet");
    let bytes = std::fs::read(&file).expect("the file");
    std::fs::remove_file(&file).expect("the file");
    std::fs::write(&file, bytes).expect("another file of the same bytes");
    let message = loop {
        match batches.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error.to_string(),
            None => panic!("no error"),
        }
    };
    assert!(
        message.contains("0.parquet") || message.contains("of table 't' changed"),
        "{message}"
    );
}

/// Writes the rows of a query as a file of the folder.
async fn copy(folder: &Path, file: &str, rows: &str) {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let path = folder.join(file);
    let sql = format!("COPY ({rows}) TO '{}' STORED AS PARQUET", path.display());
    run(&ctx, &sql).await.expect("a file");
}

/// A session whose memory pool has this many bytes, over the files of a folder.
async fn of_pool(folder: &Path, partitions: usize, bytes: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(512);
    let ctx = context_of_pool(config, Arc::new(GreedyMemoryPool::new(bytes)));
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.engine", "cpu");
    external(&ctx, folder).await;
    ctx
}

/// Memory that suffices for one partition of a query suffices for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn partitions_read_in_turns_where_memory_is_short() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = "SELECT value * 7919 % 100003 AS v FROM range(0, 900000)";
    copy(folder.path(), "0.parquet", rows).await;
    settle();
    let ctx = of_pool(folder.path(), 8, 3_000_000).await;
    let sql = "SELECT range_min('t.v', value, value + 100), range_argmax('t.v', value, value + 200) \
               FROM range(0, 800000, 17)";
    for _ in 0..3 {
        run(&ctx, sql).await.expect("enough memory");
    }
    assert!(ctx.runtime_env().memory_pool.reserved() < 100_000);
}

/// Rows are read in the memory of cached indexes, whose next query builds them again.
#[tokio::test]
async fn cached_indexes_give_way_to_rows_that_are_read() {
    let (small, large) = (tempfile::tempdir(), tempfile::tempdir());
    let (small, large) = (small.expect("a folder"), large.expect("a folder"));
    let three = "SELECT value AS v, -value AS w, value + 1 AS x FROM range(0, 100000)";
    copy(small.path(), "0.parquet", three).await;
    copy(
        large.path(),
        "0.parquet",
        "SELECT value AS v FROM range(0, 700000)",
    )
    .await;
    settle();
    let ctx = of_pool(large.path(), 2, 2_600_000).await;
    let sql = format!(
        "CREATE EXTERNAL TABLE s STORED AS PARQUET LOCATION '{}'",
        small.path().display()
    );
    run(&ctx, &sql).await.expect("a table");
    for column in ["v", "w", "x"] {
        run(&ctx, &format!("SELECT range_min('s.{column}', 3, 9)"))
            .await
            .expect("enough memory");
    }
    assert!(ctx.runtime_env().memory_pool.reserved() > 1_650_000);
    let sql = "SELECT range_min('t.v', 5, 9)";
    assert_eq!(bigint(&ctx, sql).await, Some(5));
}

/// Texts, which have to be in memory, are read again without the numbers beside which they do not fit.
#[tokio::test]
async fn numbers_stay_in_files_where_texts_need_the_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows =
        "SELECT value AS v, concat('text of some length ', value % 100) AS s FROM range(0, 200000)";
    copy(folder.path(), "0.parquet", rows).await;
    settle();
    let ctx = of_pool(folder.path(), 1, 1 << 30).await;
    set(&ctx, "rmq.index_memory_limit", "17000000");
    let sql = "SELECT range_min('t.v', l, r), range_min('t.s', l, r) FROM q";
    ranges(&ctx, &[(Some(2), Some(9))], &[]);
    let (rows, metrics) = measured(&ctx, sql).await;
    assert_eq!(lines(&[rows]), ["2 | text of some length 2"], "{metrics:?}");
    assert!(metrics.contains_key("index_chunks"), "{metrics:?}");
}
