//! The first rows of a range in another order than that of its key: LATERAL and scalar subqueries with ORDER BY and
//! LIMIT, compared with DataFusion's own row numbers.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array,
    Int64Array, StringArray, StringViewArray, TimestampSecondArray,
};
use datafusion::arrow::datatypes::Int8Type;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::answer;
use crate::support::{draw_join_mode, register, set};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 300;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 15;

/// The columns by which rows are ordered, of many types and with few or many distinct values. Each has NULLs or not.
const ORDERED: [&str; 8] = ["i", "f", "t", "w", "d", "c", "b", "day"];

fn columns(random: &mut Random, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let spread = [3, 30, 1_000][random.below(3)];
    let mut values = || -> Vec<Option<i64>> {
        let (few, nulls) = ([2, spread][random.below(2)], [0, 2, 12][random.below(3)]);
        let value = |_| {
            let value = random.below(few) as i64 - 1;
            (nulls == 0 || random.below(nulls) > 0).then_some(value)
        };
        (0..rows).map(value).collect()
    };
    let text = |v: i64| {
        ["", "a", "ab", "b"][v.rem_euclid(4) as usize].repeat(1 + v.unsigned_abs() as usize % 9)
    };
    let texts = |values: Vec<Option<i64>>| values.into_iter().map(move |v| v.map(text));
    let float = |v: i64| match v {
        1 => f64::NAN,
        2 => f64::NEG_INFINITY,
        v => v as f64 / 4.0,
    };
    let floats = values().into_iter().map(|v| v.map(float));
    let floats: ArrayRef = Arc::new(floats.collect::<Float64Array>());
    let coded: Vec<Option<String>> = texts(values()).collect();
    let coded: DictionaryArray<Int8Type> = coded.iter().map(Option::as_deref).collect();
    let days = values().into_iter().map(|v| v.map(|v| v as i32));
    let days: ArrayRef = Arc::new(days.collect::<Date32Array>());
    let decimals = Decimal128Array::from(
        values()
            .into_iter()
            .map(|v| v.map(i128::from))
            .collect::<Vec<_>>(),
    );
    let decimals = decimals.with_precision_and_scale(20, 2).expect("a decimal");
    vec![
        (
            "n",
            Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef,
        ),
        ("s", Arc::new(Int64Array::from(values()))),
        (
            "g",
            Arc::new(Int64Array::from_iter_values(
                (0..rows as i64).map(|i| i % 2),
            )),
        ),
        ("k", Arc::new(TimestampSecondArray::from(values()))),
        ("i", Arc::new(Int64Array::from(values()))),
        ("f", floats),
        ("t", Arc::new(texts(values()).collect::<StringArray>())),
        ("w", Arc::new(texts(values()).collect::<StringViewArray>())),
        ("d", Arc::new(decimals)),
        ("c", Arc::new(coded)),
        (
            "b",
            Arc::new(
                values()
                    .into_iter()
                    .map(|v| v.map(|v| v > 0))
                    .collect::<BooleanArray>(),
            ),
        ),
        ("day", days),
    ]
}

fn range(random: &mut Random) -> String {
    let seconds = random.below(400);
    let mut parts = vec![match random.below(9) {
        5 => format!("abs(p.k - q.k) < INTERVAL '{seconds} seconds'"),
        6 => format!("abs(p.f - q.f) <= {}", seconds as f64 / 100.0),
        7 => format!("q.i - p.i BETWEEN -3 AND {seconds}"),
        8 => format!(
            "(p.k BETWEEN q.k - INTERVAL '{seconds} seconds' AND q.k OR p.k = q.k + INTERVAL '20 seconds')"
        ),
        0 => format!("p.k BETWEEN q.k - INTERVAL '{seconds} seconds' AND q.k"),
        1 => "p.k <= q.k".to_string(),
        2 => format!("p.k > q.k AND p.k < q.k + INTERVAL '{seconds} seconds'"),
        3 => format!("q.k - p.k <= INTERVAL '{seconds} seconds' AND p.k <= q.k"),
        _ => "q.k <= p.k".to_string(),
    }];
    parts.extend(match random.below(4) {
        0 => None,
        1 => Some("p.s = q.s".to_string()),
        _ => Some("p.g = q.g".to_string()),
    });
    parts.extend(
        match random.below(8) {
            0 => Some("(p.n + q.n) % 3 <> 0"),
            1 => Some("p.f >= q.f"),
            2 => Some("p.i <> q.i AND p.day <= q.day"),
            _ => None,
        }
        .map(String::from),
    );
    parts.join(" AND ")
}

/// A query, and the same by row numbers.
fn query(random: &mut Random) -> (String, String) {
    let on = range(random);
    let mut orders: Vec<String> = vec![];
    let first_descends = random.below(2) == 0;
    for i in 0..1 + random.below(3) {
        let column = if i > 0 && random.below(4) == 0 {
            "k"
        } else {
            ORDERED[random.below(ORDERED.len())]
        };
        let descends = if i == 0 {
            first_descends
        } else {
            random.below(2) == 0
        };
        let direction = if descends { " DESC" } else { "" };
        let nulls = ["", "", " NULLS FIRST", " NULLS LAST"][random.below(4)];
        let expr = match (column, random.below(6)) {
            ("i", 0) => "p.i + p.n % 5".to_string(),
            _ => format!("p.{column}"),
        };
        orders.push(format!("{expr}{direction}{nulls}"));
    }
    let (skip, fetch) = (
        [0, 0, 1, 7][random.below(4)],
        [1, 2, 3, 10, 200][random.below(5)],
    );
    let form = random.below(4);
    // Rows that ORDER BY leaves open come in input order, from the end on if it descends.
    let last = if first_descends { "DESC" } else { "ASC" };
    if orders.len() == 1 && (form == 0 || fetch == 1) {
        // One row by one expression is that with the smallest range key.
        orders.push(format!("p.n {last}"));
    }
    let order = orders.join(", ");
    let offset = if skip > 0 {
        format!(" OFFSET {skip}")
    } else {
        String::new()
    };
    let subquery = |columns: &str, fetch: usize, offset: &str| {
        format!("SELECT {columns} FROM p WHERE {on} ORDER BY {order} LIMIT {fetch}{offset}")
    };
    let numbered = |skip: usize, fetch: usize| {
        format!(
            "SELECT q.n AS id, p.n, p.d, p.c, row_number() OVER (PARTITION BY q.n ORDER BY {order}, p.n {last}) AS rn \
             FROM q JOIN p ON {on} QUALIFY rn > {skip} AND rn <= {}",
            skip + fetch
        )
    };
    match form {
        0 => (
            format!(
                "SELECT q.n, ({}) AS a, ({}) AS b FROM q",
                subquery("p.n", 1, ""),
                subquery("p.c", 1, "")
            ),
            format!(
                "SELECT q.n, x.n, x.c FROM q LEFT JOIN ({}) x ON x.id = q.n",
                numbered(0, 1)
            ),
        ),
        1 => (
            format!(
                "SELECT q.n, x.n, x.d, x.c, x.e FROM q LEFT JOIN LATERAL ({}) x ON true",
                subquery("p.n, p.d, p.c, p.n + q.n AS e", fetch, &offset)
            ),
            format!(
                "SELECT q.n, x.n, x.d, x.c, x.n + q.n FROM q LEFT JOIN ({}) x ON x.id = q.n",
                numbered(skip, fetch)
            ),
        ),
        _ => (
            format!(
                "SELECT q.n, x.n, x.d, x.c FROM q CROSS JOIN LATERAL ({}) x",
                subquery("p.n, p.d, p.c", fetch, &offset)
            ),
            format!("SELECT id, n, d, c FROM ({})", numbered(skip, fetch)),
        ),
    }
}

/// Two tables, in a session with the extension and in one without. Columns without NULLs are NOT NULL, or not.
fn sessions(random: &mut Random) -> (SessionContext, SessionContext) {
    let (p, q) = (
        [0, 1, 60, 60, 700, 700][random.below(6)],
        [0, 5, 60, 60, 60][random.below(5)],
    );
    let (p, q) = (columns(random, p), columns(random, q));
    let config = SessionConfig::new()
        .with_target_partitions([1, 4][random.below(2)])
        .with_batch_size([2, 50, 8192][random.below(3)]);
    let rows = p[0].1.len();
    let splits = [vec![], vec![rows / 3, rows / 4]];
    let splits = &splits[random.below(2)];
    let not_null = random.below(2) == 0;
    let session = |config| {
        let ctx = SessionContext::new_with_config(config);
        for (name, columns, splits) in [("p", &p, splits), ("q", &q, &vec![])] {
            register(&ctx, name, columns, splits);
            if not_null {
                without_nulls(&ctx, name, columns);
            }
        }
        ctx
    };
    // DataFusion joins all pairs, which takes a minute in batches of two.
    let in_large_batches = config.clone().with_batch_size(8192);
    let (with, without) = (session(config), session(in_large_batches));
    datafusion_rmq::register(&with);
    draw_join_mode(&with, random);
    // Differences of times have a distance in both.
    let abs = with.state().scalar_functions().get("abs").cloned();
    without.register_udf(ScalarUDF::clone(&abs.expect("abs of durations")));
    (with, without)
}

/// Registers the table again, with columns that are NOT NULL where they have none.
fn without_nulls(ctx: &SessionContext, name: &str, columns: &[(&str, ArrayRef)]) {
    use datafusion::arrow::array::{Array, RecordBatch};
    use datafusion::arrow::datatypes::{Field, Schema};
    let fields = columns.iter().map(|(name, array)| {
        Field::new(
            *name,
            array.data_type().clone(),
            array.logical_null_count() > 0,
        )
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.iter().map(|(_, array)| Arc::clone(array)).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).expect("columns of one length");
    let table = MemTable::try_new(schema, vec![vec![batch]]).expect("a batch of the schema");
    ctx.deregister_table(name).expect("a table");
    ctx.register_table(name, Arc::new(table)).expect("a table");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_rows_are_those_of_row_numbers() {
    let seeds = cases_with_queries("top rows", &FAILED, CASES, QUERIES);
    let (mut asked, mut with_rows) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let (with, without) = sessions(random);
        for _ in 0..QUERIES {
            let (sql, other) = query(random);
            let expected = answer(&without, &other).await;
            let (expected, _) = expected.unwrap_or_else(|e| panic!("seed {seed}: {other}: {e}"));
            let found = answer(&with, &sql).await;
            let (found, has_range_join) =
                found.unwrap_or_else(|e| panic!("seed {seed}: {sql}: {e}"));
            assert!(has_range_join, "seed {seed}: {sql}");
            assert_eq!(found, expected, "seed {seed}: {sql}");
            asked += 1;
            with_rows += usize::from(found.len() > 5);
        }
    }
    assert!(
        !is_usual() || with_rows * 4 > asked,
        "{with_rows} of {asked}"
    );
}

/// Windows of thousands of rows are searched by ranks, those before few rows are sorted.
#[tokio::test(flavor = "multi_thread")]
async fn long_windows_are_searched_by_ranks() {
    for mut random in rmq_testing::runs("top rows of long windows", &[]) {
        let random = &mut random;
        let (with, without) = (SessionContext::new(), SessionContext::new());
        datafusion_rmq::register(&with);
        let spread = [4, 50_000][random.below(2)];
        for ctx in [&with, &without] {
            // One partition keeps the order of rows.
            set(ctx, "datafusion.execution.target_partitions", "1");
            for sql in [
                format!(
                    "CREATE TABLE p AS SELECT value AS n, value % 3 AS g, value * 7919 % 20011 AS k, \
                     nullif(value * 104729 % {spread}, 2) AS v FROM range(0, 20000)"
                ),
                "CREATE TABLE q AS SELECT value AS n, value % 4 AS g, value * 183 AS k FROM range(0, 100)".into(),
            ] {
                crate::support::run(ctx, &sql).await.expect("a table");
            }
        }
        set(&with, "datafusion.execution.target_partitions", "2");
        for (order, last) in [
            ("v DESC", "DESC"),
            ("v, k DESC", "ASC"),
            ("v DESC NULLS LAST, k", "DESC"),
        ] {
            for further in ["", " AND (p.n + q.n) % 50 = 0", " AND p.v < q.n"] {
                let on = format!("p.g = q.g AND p.k BETWEEN q.k - 9000 AND q.k{further}");
                let order = order.replace('v', "p.v").replace('k', "p.k");
                let sql = format!(
                    "SELECT q.n, x.n FROM q CROSS JOIN LATERAL (SELECT p.n FROM p WHERE {on} ORDER BY {order} LIMIT 4) x"
                );
                let other = format!(
                    "SELECT id, n FROM (SELECT q.n AS id, p.n, row_number() OVER (PARTITION BY q.n ORDER BY {order}, p.n {last}) AS rn \
                     FROM q JOIN p ON {on}) WHERE rn <= 4"
                );
                let (expected, _) = answer(&without, &other).await.expect("row numbers");
                let (found, has_range_join) = answer(&with, &sql).await.expect("the first rows");
                assert!(has_range_join && !found.is_empty(), "{sql}");
                assert_eq!(found, expected, "{sql}");
            }
        }
    }
}
