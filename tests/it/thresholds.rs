//! Subqueries for the first or last key of a range where a value crosses a threshold, against a naive loop: in memory,
//! on disk, with few rows of the outer query, and on devices that are threads.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::execution::memory_pool::UnboundedMemoryPool;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::fake::Fake;
use crate::range_join::metric;
use crate::spilling::ForRangeJoins;
use crate::support::{register, run, session, session_of_pool, set};
use rmq_testing::{Random, runs};

/// The outer rows and the searched rows.
struct Tables {
    q: Vec<[Option<i64>; 3]>,
    limits: Vec<Option<f64>>,
    p: Vec<[Option<i64>; 2]>,
    values: Vec<Option<f64>>,
}

/// A value among few, so that there are ties; sometimes NULL.
fn few(random: &mut Random, limit: usize) -> Option<i64> {
    (random.below(20) > 0).then(|| random.below(limit) as i64)
}

fn float(random: &mut Random) -> Option<f64> {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];
    match random.below(12) {
        0 => None,
        1 | 2 => Some(special[random.below(special.len())]),
        _ => Some(random.below(40) as f64 / 4.0 - 4.0),
    }
}

impl Tables {
    fn new(random: &mut Random, searched: usize, outer: usize) -> Self {
        let keys = searched / 3 + 1;
        Self {
            q: (0..outer)
                .map(|_| {
                    let (sym, from) = (few(random, 4), few(random, keys));
                    let longest = [3, 30, keys][random.below(3)];
                    let length = random.below(longest) as i64;
                    [sym, from, from.map(|from| from + length)]
                })
                .collect(),
            limits: (0..outer).map(|_| float(random)).collect(),
            p: (0..searched)
                .map(|_| [few(random, 3), few(random, keys)])
                .collect(),
            values: (0..searched).map(|_| float(random)).collect(),
        }
    }

    fn register(&self, ctx: &SessionContext) {
        fn column<const N: usize>(rows: &[[Option<i64>; N]], i: usize) -> ArrayRef {
            Arc::new(rows.iter().map(|row| row[i]).collect::<Int64Array>())
        }
        let floats = |values: &[Option<f64>]| -> ArrayRef {
            Arc::new(values.iter().copied().collect::<Float64Array>())
        };
        let ids: Int64Array = (0..self.q.len() as i64).collect();
        let q: [(&str, ArrayRef); 5] = [
            ("id", Arc::new(ids)),
            ("sym", column(&self.q, 0)),
            ("a", column(&self.q, 1)),
            ("b", column(&self.q, 2)),
            ("x", floats(&self.limits)),
        ];
        let half = self.q.len() / 2;
        register(ctx, "q", &q, &[half]);
        let p: [(&str, ArrayRef); 3] = [
            ("sym", column(&self.p, 0)),
            ("k", column(&self.p, 1)),
            ("v", floats(&self.values)),
        ];
        let batches: Vec<usize> = vec![1000; self.p.len() / 1000];
        register(ctx, "p", &p, &batches);
    }

    /// The least and the greatest key that qualify, of each outer row.
    fn naive(&self, shape: &Shape) -> Vec<(Option<i64>, Option<i64>)> {
        let crosses = |value: f64, limit: f64| {
            // The order of DataFusion's comparisons: total, except for zeros.
            let zero = |v: f64| if v == 0.0 { 0.0 } else { v };
            let order = zero(value).total_cmp(&zero(limit));
            match shape.operator {
                "<=" => order.is_le(),
                "<" => order.is_lt(),
                ">=" => order.is_ge(),
                _ => order.is_gt(),
            }
        };
        let outer = self.q.iter().zip(&self.limits);
        let found = outer.map(|([sym, a, b], limit)| {
            let (Some(limit), Some(a)) = (*limit, *a) else {
                return (None, None);
            };
            let rows = self.p.iter().zip(&self.values);
            let keys = rows.filter_map(|([other, key], value)| {
                let (key, value) = ((*key)?, (*value)?);
                let is_equal = !shape.equality || (sym.is_some() && sym == other);
                let in_range = if shape.strict { key > a } else { key >= a };
                let in_range = in_range && (!shape.upper || b.is_some_and(|b| key <= b));
                (is_equal && in_range && crosses(value, limit)).then_some(key)
            });
            let keys: Vec<i64> = keys.collect();
            (keys.iter().min().copied(), keys.iter().max().copied())
        });
        found.collect()
    }
}

/// A query.
struct Shape {
    operator: &'static str,
    equality: bool,
    upper: bool,
    strict: bool,
    swapped: bool,
}

impl Shape {
    fn new(random: &mut Random) -> Self {
        let mut coin = || random.below(2) == 0;
        let [equality, upper, strict, swapped] = [coin(), coin(), coin(), coin()];
        Self {
            operator: ["<=", "<", ">=", ">"][random.below(4)],
            equality,
            upper,
            strict,
            swapped,
        }
    }

    fn sql(&self) -> String {
        let lower = if self.strict {
            "p.k > q.a"
        } else {
            "p.k >= q.a"
        };
        let mut condition = lower.to_string();
        if self.upper {
            condition += " AND p.k <= q.b";
        }
        if self.equality {
            condition = format!("p.sym = q.sym AND {condition}");
        }
        let threshold = if self.swapped {
            let swapped = match self.operator {
                "<=" => ">=",
                "<" => ">",
                ">=" => "<=",
                _ => "<",
            };
            format!("q.x {swapped} p.v")
        } else {
            format!("p.v {} q.x", self.operator)
        };
        format!(
            "SELECT q.id, (SELECT min(p.k) FROM p WHERE {condition} AND {threshold}), \
             (SELECT max(p.k) FROM p WHERE {threshold} AND {condition}) FROM q ORDER BY q.id"
        )
    }
}

/// Runs the query, compares its rows with those of the naive loop, and returns a metric of its range joins.
async fn compare(ctx: &SessionContext, tables: &Tables, shape: &Shape, name: &str) -> usize {
    let sql = shape.sql();
    let frame = ctx.sql(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let plan = frame.create_physical_plan().await;
    let plan = plan.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let batches = batches.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let mut found = vec![];
    for batch in &batches {
        let column = |i: usize| batch.column(i).as_primitive::<Int64Type>();
        found.extend(column(1).iter().zip(column(2)));
    }
    assert_eq!(found, tables.naive(shape), "{sql}");
    metric(&plan, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn subqueries_with_thresholds_return_what_a_naive_loop_returns() {
    for mut random in runs("thresholds", &[]) {
        for _ in 0..12 {
            let random = &mut random;
            let searched = [0, 1, 30, 2_000][random.below(4)];
            let outer = random.below(150);
            let tables = Tables::new(random, searched, outer);
            let (ctx, devices) = (session(), Fake::real().session(&[("rmq.engine", "cuda")]));
            for ctx in [&ctx, &devices] {
                tables.register(ctx);
            }
            for _ in 0..3 {
                let shape = Shape::new(random);
                compare(&ctx, &tables, &shape, "").await;
                compare(&devices, &tables, &shape, "").await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thresholds_over_spilled_rows_return_what_a_naive_loop_returns() {
    for mut random in runs("thresholds on disk", &[]) {
        let random = &mut random;
        let tables = Tables::new(random, 20_000, 60);
        let mut spilled = 0;
        for _ in 0..6 {
            let config = SessionConfig::new().with_batch_size(1000);
            let ctx = session_of_pool(config, ForRangeJoins::new(400_000));
            tables.register(&ctx);
            spilled += compare(&ctx, &tables, &Shape::new(random), "spill_count").await;
        }
        assert!(spilled > 0, "nothing was written to disk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thresholds_of_few_rows_return_what_a_naive_loop_returns() {
    for mut random in runs("thresholds of few rows", &[]) {
        let random = &mut random;
        let tables = Tables::new(random, 66_500, 9);
        let pool = Arc::new(UnboundedMemoryPool::default());
        let ctx = session_of_pool(SessionConfig::new(), pool);
        // Forced devices take rows in no order, too.
        set(&ctx, "rmq.engine", "cpu");
        set(&ctx, "rmq.pruning", "always");
        tables.register(&ctx);
        let mut compared = 0;
        for _ in 0..4 {
            compared += compare(&ctx, &tables, &Shape::new(random), "rows_scanned").await;
        }
        assert!(compared > 0, "all rows were sorted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_is_a_range_of_the_ordered_rows() {
    let random = &mut Random::from_seed(14);
    let tables = Tables::new(random, 3_000, 1);
    let ctx = session();
    tables.register(&ctx);
    let numbered = "CREATE TABLE o AS SELECT *, row_number() OVER () AS i FROM p";
    run(&ctx, numbered).await.unwrap();
    for name in [
        "first_at_most",
        "last_at_most",
        "first_at_least",
        "last_at_least",
    ] {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE a IS DISTINCT FROM b) FROM \
             (SELECT frame_{name}(v, k - 20, k + 500, v - 1) OVER (ORDER BY i) AS a, \
             range_{name}((SELECT v FROM o ORDER BY i), k - 20, k + 500, v - 1) AS b FROM o)"
        );
        let batch = run(&ctx, &sql).await.unwrap();
        let different = batch.column(0).as_primitive::<Int64Type>();
        assert_eq!(
            (different.value(0), different.is_null(0)),
            (0, false),
            "{sql}"
        );
    }
}
