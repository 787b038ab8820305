//! EXISTS and IN in any expression, with conditions that DataFusion has no plan for, compared with counts over all
//! pairs.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use crate::range_join::answer;
use crate::row_joins::{Tables, condition};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 60;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 6;

/// A query, and the same by counting pairs. IN is TRUE if there is an equal value, and otherwise NULL if there is a row
/// and one of the values is NULL.
fn query(random: &mut Random) -> (String, String) {
    let on = condition(random);
    let x = ["q.v", "q.v + 1", "4", "q.k"][random.below(4)];
    let value = ["p.v", "p.k", "coalesce(p.v, 3)"][random.below(3)];
    let exists = format!("EXISTS (SELECT 1 FROM p WHERE {on})");
    let not_exists = format!("NOT {exists}");
    let is_in = format!("{x} IN (SELECT {value} FROM p WHERE {on})");
    let not_in = format!("{x} NOT IN (SELECT {value} FROM p WHERE {on})");
    let counted = format!(
        "(SELECT q.id, q.v, count(p.id) AS n, count(p.id) FILTER (WHERE {value} = {x}) AS equal, \
         count(p.id) FILTER (WHERE {value} IS NULL OR {x} IS NULL) AS nulls \
         FROM q LEFT JOIN p ON {on} GROUP BY q.id, q.v)"
    );
    let is_member = "CASE WHEN equal > 0 THEN true WHEN nulls > 0 THEN NULL ELSE false END";
    match random.below(6) {
        0 => (
            format!("SELECT id, {exists}, {not_exists} FROM q"),
            format!("SELECT id, n > 0, n = 0 FROM {counted}"),
        ),
        1 => (
            format!("SELECT id, {is_in}, {not_in} FROM q"),
            format!("SELECT id, {is_member}, NOT {is_member} FROM {counted}"),
        ),
        2 => (
            format!("SELECT id FROM q WHERE {not_in}"),
            format!("SELECT id FROM {counted} WHERE NOT {is_member}"),
        ),
        3 => (
            format!("SELECT id FROM q WHERE ({is_in}) IS NULL OR q.v = 2"),
            format!("SELECT id FROM {counted} WHERE {is_member} IS NULL OR v = 2"),
        ),
        4 => (
            format!("SELECT id FROM q WHERE NOT ({is_in}) AND ({not_exists} OR q.id % 2 = 0)"),
            format!("SELECT id FROM {counted} WHERE NOT {is_member} AND (n = 0 OR id % 2 = 0)"),
        ),
        _ => (
            format!("SELECT sum(CASE WHEN {exists} THEN id END), count({is_in}) FROM q"),
            format!("SELECT sum(CASE WHEN n > 0 THEN id END), count({is_member}) FROM {counted}"),
        ),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memberships_agree_with_counts_of_pairs() {
    let seeds = cases_with_queries("memberships", &FAILED, CASES, QUERIES);
    let (mut asked, mut replaced) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let tables = Tables::new(random);
        for _ in 0..QUERIES {
            let (with, without) = query(random);
            let (expected, _) = answer(&tables.without, &without)
                .await
                .unwrap_or_else(|error| panic!("tables of seed {seed}: {without}: {error}"));
            let (found, is_range_join) = answer(&tables.with, &with)
                .await
                .unwrap_or_else(|error| panic!("tables of seed {seed}: {with}: {error}"));
            assert_eq!(found, expected, "tables of seed {seed}: {with}");
            asked += 1;
            replaced += usize::from(is_range_join);
        }
    }
    println!("memberships: {replaced} of {asked} queries have a range join");
    assert!(
        !is_usual() || replaced * 3 > asked * 2,
        "{replaced} of {asked}"
    );
}
