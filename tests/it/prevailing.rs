//! Compares range joins with prevailing rows with a loop over all rows.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` one case; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::metric;
use crate::spilling::ForRangeJoins;
use crate::support::{draw_join_mode, register, run, session_of_pool};
use rmq_testing::{Random, cases, is_usual};

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 200;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Expressions that keep the order of the bounds, of types with different key searches.
const TYPES: [&str; 6] = [
    "{}",
    "CAST({} AS DOUBLE)",
    "CAST({} AS DECIMAL(30, 2))",
    "arrow_cast({}, 'Timestamp(Nanosecond, None)')",
    "lpad(CAST({} + 100 AS VARCHAR), 5, '0')",
    "arrow_cast(lpad(CAST({} + 100 AS VARCHAR), 5, '0'), 'Dictionary(Int32, Utf8)')",
];

/// A build row: its equality key, range key and value.
struct BuildRow {
    sym: Option<i64>,
    k: Option<i64>,
    v: Option<i64>,
}

/// A probe row: its equality key and two bounds.
struct ProbeRow {
    sym: Option<i64>,
    a: Option<i64>,
    b: Option<i64>,
}

/// A window: whether it has equality keys, and how its bounds compare. The upper bound is optional.
#[derive(Debug, Clone, Copy)]
struct Window {
    keys: bool,
    lower_strict: bool,
    upper: Option<bool>,
    constant: Option<i64>,
    prevailing: bool,
}

impl Window {
    fn random(random: &mut Random) -> Self {
        Self {
            keys: random.below(3) > 0,
            lower_strict: random.below(2) == 0,
            upper: [None, Some(false), Some(true)][random.below(3)],
            constant: (random.below(4) == 0).then(|| random.below(12) as i64),
            prevailing: random.below(4) > 0,
        }
    }

    fn sql(self, random: &mut Random, typed: &dyn Fn(&str) -> String) -> String {
        let mut compare = |op: &str, swapped: &str, bound: &str| {
            let (key, bound) = (typed("k"), typed(bound));
            if random.below(2) == 0 {
                format!("{key} {op} {bound}")
            } else {
                format!("{bound} {swapped} {key}")
            }
        };
        let mut parts = vec![if self.lower_strict {
            compare(">", "<", "a")
        } else {
            compare(">=", "<=", "a")
        }];
        parts.extend(self.upper.map(|strict| match strict {
            true => compare("<", ">", "b"),
            false => compare("<=", ">=", "b"),
        }));
        let constant = self.constant.map(|c| c.to_string());
        parts.extend(constant.map(|c| compare("<=", ">=", &c)));
        let at = random.below(parts.len());
        parts.swap(0, at);
        parts.join(" AND ").replace('\'', "''")
    }

    /// The positions of the rows that match, ordered by key.
    fn rows(self, probe: &ProbeRow, build_rows: &[BuildRow]) -> Vec<usize> {
        let Some(a) = probe.a else {
            return vec![];
        };
        if self.upper.is_some() && probe.b.is_none() {
            return vec![];
        }
        let mut found: Vec<(i64, usize)> = vec![];
        let mut prevailing: Option<(i64, usize)> = None;
        for (position, row) in build_rows.iter().enumerate() {
            let Some(k) = row.k else {
                continue;
            };
            if self.keys && (row.sym.is_none() || row.sym != probe.sym) {
                continue;
            }
            let from = if self.lower_strict { k > a } else { k >= a };
            let to = match (self.upper, probe.b) {
                (Some(true), Some(b)) => k < b,
                (Some(false), Some(b)) => k <= b,
                _ => true,
            };
            if from && to && self.constant.is_none_or(|c| k <= c) {
                found.push((k, position));
            }
            if k <= a {
                prevailing = prevailing.max(Some((k, position)));
            }
        }
        let ends_first = self.upper.is_some() && probe.b.is_some_and(|b| b < a)
            || self.constant.is_some_and(|c| c < a);
        if self.prevailing && !ends_first {
            found.extend(prevailing.filter(|row| !found.contains(row)));
        }
        found.sort_unstable();
        found.into_iter().map(|(_, position)| position).collect()
    }
}

fn maybe(random: &mut Random, below: usize) -> Option<i64> {
    (random.below(10) > 0).then(|| random.below(below) as i64)
}

/// The aggregates over the rows that match: row count, value count, minimum, sum, first and last position.
fn expected(rows: &[usize], build_rows: &[BuildRow]) -> [Option<i64>; 6] {
    let values: Vec<i64> = rows.iter().filter_map(|r| build_rows[*r].v).collect();
    let last_key = rows.last().map(|r| build_rows[*r].k);
    let last = rows.iter().find(|r| Some(build_rows[**r].k) == last_key);
    [
        Some(rows.len() as i64),
        Some(values.len() as i64),
        values.iter().min().copied(),
        (!values.is_empty()).then(|| values.iter().sum()),
        rows.first().map(|r| *r as i64),
        last.map(|r| *r as i64),
    ]
}

fn answers(batch: &RecordBatch) -> Vec<[Option<i64>; 6]> {
    let column = |i: usize| batch.column(i).as_primitive::<Int64Type>();
    let cell = |row: usize, i: usize| column(i).iter().nth(row).flatten();
    let rows = 0..batch.num_rows();
    rows.map(|row| std::array::from_fn(|i| cell(row, i)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prevailing_rows_agree_with_a_loop() {
    let (mut added, mut spilled, mut exhausted) = (0, 0, 0);
    for case in cases("prevailing rows", &FAILED, CASES) {
        let random = &mut Random::of_case(case);
        let spread = [4, 12, 90][random.below(3)];
        let (n, m) = (random.below(40), 1 + random.below(30));
        let build_rows: Vec<BuildRow> = (0..n)
            .map(|_| BuildRow {
                sym: maybe(random, 3),
                k: maybe(random, spread),
                v: maybe(random, 50),
            })
            .collect();
        let probe_rows: Vec<ProbeRow> = (0..m)
            .map(|_| ProbeRow {
                sym: maybe(random, 3),
                a: maybe(random, spread),
                b: maybe(random, spread + 2),
            })
            .collect();
        // One partition, so that the rows keep their order.
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size([3, 16, 8192][random.below(3)]);
        // Build sides that do not fit into little memory are on disk.
        let limit = [None, Some(1 << 10), Some(4 << 10)][random.below(3)];
        let pool: Arc<dyn MemoryPool> = match limit {
            Some(limit) => ForRangeJoins::new(limit),
            None => Arc::new(UnboundedMemoryPool::default()),
        };
        let ctx = session_of_pool(config, pool);
        draw_join_mode(&ctx, random);
        let column = |values: Vec<Option<i64>>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
        let positions = |n: usize| column((0..n as i64).map(Some).collect());
        let columns = [
            ("row", positions(n)),
            ("sym", column(build_rows.iter().map(|r| r.sym).collect())),
            ("k", column(build_rows.iter().map(|r| r.k).collect())),
            ("v", column(build_rows.iter().map(|r| r.v).collect())),
        ];
        register(&ctx, "p", &columns, &[n / 3, n / 4]);
        let columns = [
            ("id", positions(m)),
            ("sym", column(probe_rows.iter().map(|r| r.sym).collect())),
            ("a", column(probe_rows.iter().map(|r| r.a).collect())),
            ("b", column(probe_rows.iter().map(|r| r.b).collect())),
        ];
        register(&ctx, "q", &columns, &[m / 3, m / 4]);

        let window = Window::random(random);
        let typed = TYPES[random.below(TYPES.len())];
        let text = window.sql(random, &|e| typed.replace("{}", e));
        let keys = if window.keys { "sym" } else { "" };
        let prevailing = ["exclude", "include"][usize::from(window.prevailing)];
        let sql = format!(
            "SELECT n, vs, low, total, first, last FROM range_join('q', 'p', '{keys}', '{text}', \
             'count(*) AS n, count(v) AS vs, min(v) AS low, sum(v) AS total, \
             first_value(row ORDER BY {key}) AS first, last_value(row ORDER BY {key}) AS last', \
             '{prevailing} prevailing') ORDER BY id",
            key = typed.replace("{}", "k").replace('\'', "''"),
        );
        let plan = ctx
            .sql(&sql)
            .await
            .expect(&sql)
            .create_physical_plan()
            .await;
        let plan = plan.expect(&sql);
        let found = match collect(Arc::clone(&plan), ctx.task_ctx()).await {
            Ok(batches) => concat_batches(&plan.schema(), &batches).expect("one schema"),
            Err(error) if limit.is_some() => {
                let root = error.find_root();
                let is_exhausted = matches!(root, DataFusionError::ResourcesExhausted(_));
                assert!(is_exhausted, "case {case}: {sql}: {error}");
                exhausted += 1;
                continue;
            }
            Err(error) => panic!("{sql}: {error}"),
        };
        spilled += usize::from(metric(&plan, "spill_count") > 0);
        let expected: Vec<_> = probe_rows
            .iter()
            .map(|row| expected(&window.rows(row, &build_rows), &build_rows))
            .collect();
        assert_eq!(answers(&found), expected, "case {case}, {window:?}: {sql}");
        let within = Window {
            prevailing: false,
            ..window
        };
        let more = |a: &&ProbeRow| window.rows(a, &build_rows) != within.rows(a, &build_rows);
        added += probe_rows.iter().filter(more).count();
    }
    println!(
        "prevailing rows: {spilled} queries wrote files, {exhausted} had too little memory for that"
    );
    assert!(
        (added > 0 && spilled > 0) || !is_usual(),
        "{added} rows prevailed"
    );
}

/// Sorted batches that arrive in another order are not reordered if the result depends on which of several equal rows
/// is the last.
#[tokio::test]
async fn of_rows_with_equal_keys_the_last_in_input_order_prevails() {
    let one = SessionConfig::new().with_target_partitions(1);
    let ctx = SessionContext::new_with_config(one);
    datafusion_rmq::register(&ctx);
    let numbers = |numbers: &[i64]| Arc::new(Int64Array::from(numbers.to_vec())) as ArrayRef;
    let columns = [
        ("k", numbers(&[10, 12, 8, 10])),
        ("v", numbers(&[1, 2, 3, 4])),
    ];
    register(&ctx, "p", &columns, &[2]);
    register(&ctx, "q", &[("a", numbers(&[11]))], &[]);
    let sql = "SELECT m FROM range_join('q', 'p', '', 'k BETWEEN a AND a', 'min(v) AS m', 'include prevailing')";
    let found = run(&ctx, sql).await.expect(sql);
    let found = found.column(0).as_primitive::<Int64Type>().value(0);
    assert_eq!(found, 4);
}
