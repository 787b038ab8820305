//! Random queries, as in the tests of datafusion-rmq-distributed. `RMQ_CASES` is the number of queries of a run,
//! `RMQ_TEST_SEED` repeats one, and `RMQ_TEST_CASE` the queries over one set of tables.

#[path = "../../../datafusion-rmq-distributed/tests/cluster/random/queries.rs"]
mod queries;
#[path = "../../../datafusion-rmq-distributed/tests/cluster/random/tables.rs"]
mod tables;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::SessionContext;
use datafusion_rmq::{ByteSize, JoinModeChoice, RmqOptions};
use datafusion_rmq_ballista::SentExec;
use rmq_testing::{Random, cases_with_queries, is_usual};

use crate::answers::most_tasks_of_joins;
use crate::files::{lines, run};
use crate::support::{CLUSTER, Settings, local, on_executors_in, start};

use queries::{Query, is_defined};
use tables::Tables;

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 60;

/// Queries over the same tables, in the same session.
const QUERIES: usize = 10;

/// Executors that are set up differently: one keeps nothing and has one thread, one has little memory, and one little
/// of it for indexes.
static UNLIKE: LazyLock<String> = LazyLock::new(|| {
    let options = [(); 3].map(|()| RmqOptions::default());
    let [mut first, second, mut third] = options;
    first.build_threads = 1;
    first.keep_indexes = false;
    third.index_memory_limit = ByteSize(1 << 20);
    let memory = [None, Some(2 << 20), Some(64 << 20)];
    let executors = [first, second, third].into_iter().zip(memory);
    let executors = executors.map(|(options, memory)| Settings { options, memory });
    start(executors.collect())
});

#[derive(Debug, Default)]
struct Tally {
    /// For each form: queries, those whose range joins have several tasks, and those with rows.
    forms: BTreeMap<&'static str, [usize; 3]>,
    /// Those that Ballista would answer wrongly.
    refused: usize,
    /// Errors on one node, and so on several.
    failed: usize,
    short_of_memory: usize,
    failures: Vec<String>,
}

/// The plan that is sent.
fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    let sent = plan.downcast_ref::<SentExec>();
    let plan = sent.map_or(plan, SentExec::plan);
    displayable(plan.as_ref()).indent(false).to_string()
}

/// Compares a query.
async fn compare(
    [one, several]: [&SessionContext; 2],
    divides: bool,
    tables: &Tables,
    query: &Query,
    tally: &mut Tally,
) {
    let sql = &query.sql;
    let expected = lines(one, sql).await;
    if expected.is_ok() && !is_defined(one, sql).await.expect(sql) {
        return;
    }
    let planned = async {
        let frame = datafusion_rmq::sql(several, sql).await?;
        frame.create_physical_plan().await
    };
    let (tasks, plan) = match planned.await {
        Ok(plan) => (most_tasks_of_joins(several, &plan), text(&plan)),
        Err(_) => (0, String::new()),
    };
    let counts = tally.forms.entry(query.form).or_default();
    counts[0] += 1;
    counts[1] += usize::from(tasks > 1);
    match (lines(several, sql).await, expected) {
        (Ok(found), Ok(expected)) => {
            // Lines around the table, and its header.
            counts[2] += usize::from(expected.len() > 5);
            if found != expected {
                tally.failures.push(format!(
                    "{} lines instead of {}",
                    found.len(),
                    expected.len()
                ));
            }
            let has_rows = tables.files_with_rows_of_q > 1 && tables.rows_of_p > 0;
            // Rows are numbered in one partition, and Ballista does not deal them out again.
            let is_numbered = plan.contains("WindowAggExec");
            if has_rows && divides && query.divides && !is_numbered && tasks < 2 {
                tally.failures.push(format!("{tasks} task\n{plan}"));
            }
        }
        (Err(_), Err(_)) => tally.failed += 1,
        (Ok(_), Err(error)) => {
            let failure = format!("an error on one node only: {error}");
            tally.failures.push(failure);
        }
        (Err(error), Ok(_)) => {
            let error = error.strip_backtrace();
            // DataFusion's nested loop join reads its inputs again where it has too little memory.
            let is_short =
                error.contains("ResourcesExhausted") || error.contains("was already consumed");
            if error.contains("Ballista 55") {
                tally.refused += 1;
            } else if tables.are_large && is_short {
                tally.short_of_memory += 1;
            } else {
                tally.failures.push(error);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_return_what_one_node_returns() {
    let begin = Instant::now();
    let mut tally = Tally::default();
    for seed in cases_with_queries("random queries on Ballista", &[], CASES, QUERIES) {
        println!("RMQ_TEST_CASE={seed}");
        let random = &mut Random::from_seed(seed);
        let tables = Tables::draw(random);
        let modes = [
            JoinModeChoice::Auto,
            JoinModeChoice::Collected,
            JoinModeChoice::Partitioned,
        ];
        let (mode, partitions) = (modes[random.below(3)], [1, 3, 3, 4, 7][random.below(5)]);
        let scheduler = if tables.are_large { &UNLIKE } else { &CLUSTER };
        let several = on_executors_in(partitions, scheduler, mode);
        let one = local();
        for ctx in [&one, &several] {
            tables.register(ctx).await;
            run(ctx, "SET rmq.range_joins = 'always'").await;
        }
        // Else scans of small files are not divided.
        let smallest = [0, 10 << 20][random.below(2)];
        let divides = format!("SET datafusion.optimizer.repartition_file_min_size = {smallest}");
        run(&several, &divides).await;
        for _ in 0..QUERIES {
            let query = Query::draw(random, &tables);
            let before = tally.failures.len();
            compare(
                [&one, &several],
                partitions > 1,
                &tables,
                &query,
                &mut tally,
            )
            .await;
            for failure in &tally.failures[before..] {
                println!(
                    "==== RMQ_TEST_CASE={seed}, mode {mode}, {partitions} partitions\n{}\n{}\n{failure}",
                    tables.label, query.sql
                );
            }
        }
    }
    let asked: usize = tally.forms.values().map(|counts| counts[0]).sum();
    let several: usize = tally.forms.values().map(|counts| counts[1]).sum();
    println!("form: queries, with joins in several tasks, with rows");
    for (form, counts) in &tally.forms {
        println!("  {form}: {counts:?}");
    }
    let Tally {
        refused, failed, ..
    } = tally;
    println!(
        "{asked} queries in {:?}, {several} with joins in several tasks, {refused} refused, {failed} errors on one node, \
         too, {} short of memory",
        begin.elapsed(),
        tally.short_of_memory
    );
    let failures = tally.failures.len();
    assert_eq!(failures, 0, "printed above");
    if !is_usual() {
        return;
    }
    assert!(several * 4 > asked, "{several} of {asked} in several tasks");
    assert!(refused * 4 < asked, "{refused} of {asked} refused");
    assert!(failed * 10 < asked, "{failed} of {asked} fail");
}
