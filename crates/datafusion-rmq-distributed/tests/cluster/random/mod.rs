//! Random queries with range joins of all forms, nearest rows and range functions return on several workers what one
//! node returns, ties included.
//!
//! `RMQ_CASES` is the number of queries of a run, `RMQ_TEST_SEED` repeats one, and `RMQ_TEST_CASE` the queries over one
//! set of tables.

mod queries;
mod tables;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionContext;
use datafusion_rmq::{ByteSize, JoinModeChoice, RmqOptions};
use datafusion_rmq_distributed::worker;
use datafusion_rmq_proto::RmqCodec;
use rmq_testing::{Random, cases_with_queries, is_usual};

use crate::answers::most_tasks_of_joins;
use crate::support::{CLUSTER, Workers, distributed_in, lines, local_in, run, start};

use queries::{Query, is_defined};
use tables::Tables;

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 120;

/// Queries over the same tables, in the same session.
const QUERIES: usize = 10;

/// Seeds of cases that once failed.
const FAILED: [u64; 1] = [4_807_180_211_181_976_168];

/// Workers that are set up differently: one keeps nothing and has one thread, one has little memory, and one little of
/// it for indexes.
static UNLIKE: LazyLock<Workers> = LazyLock::new(|| {
    let options = [(); 3].map(|()| RmqOptions::default());
    let [mut first, second, mut third] = options;
    first.build_threads = 1;
    first.keep_indexes = false;
    third.index_memory_limit = ByteSize(1 << 20);
    let pools = [None, Some(2 << 20), Some(64 << 20)];
    let workers = [first, second, third].into_iter().zip(pools);
    let workers = workers.map(|(options, pool)| {
        let worker = worker(&RmqCodec::default(), &options);
        start(match pool {
            Some(bytes) => {
                let pool = Arc::new(FairSpillPool::new(bytes));
                let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool);
                worker.with_runtime_env(runtime.build_arc().expect("a runtime"))
            }
            None => worker,
        })
    });
    Workers::new(workers.collect())
});

#[derive(Debug, Default)]
struct Tally {
    /// For each form: queries, those whose range joins have several tasks, and those with rows.
    forms: BTreeMap<&'static str, [usize; 3]>,
    modes: BTreeMap<String, usize>,
    /// Errors on one node, and so on several.
    refused: BTreeMap<String, usize>,
    short_of_memory: usize,
    /// Those whose result is not defined.
    undefined: usize,
    failures: Vec<String>,
}

/// The two sessions of a case, and how they were drawn.
struct Sessions {
    one: SessionContext,
    several: SessionContext,
    has_little_memory: bool,
    /// Whether joins are range joins, and in several tasks where they can be.
    divides: bool,
    label: String,
}

async fn open(random: &mut Random, tables: &Tables) -> Sessions {
    let mut pick = |n: usize| random.below(n);
    let modes = [
        JoinModeChoice::Auto,
        JoinModeChoice::Collected,
        JoinModeChoice::Partitioned,
    ];
    let mode = modes[pick(3)];
    let partitions = [1, 2, 3, 4, 7][pick(5)];
    let num_workers = 2 + pick(2);
    let has_little_memory = tables.are_large;
    let workers = if has_little_memory { &UNLIKE } else { &CLUSTER };
    let several = distributed_in(partitions, workers.first(num_workers), mode);
    let one = local_in(1 + pick(4));
    let choice = ["always", "always", "always", "auto"][pick(4)];
    for ctx in [&one, &several] {
        tables.register(ctx).await;
        run(ctx, &format!("SET rmq.range_joins = '{choice}'")).await;
    }
    Sessions {
        one,
        several,
        has_little_memory,
        // Where a task has one partition, there is no exchange at which the plan would be divided.
        divides: choice == "always" && partitions > 1,
        label: format!(
            "{num_workers} workers, {partitions} partitions, mode {mode}, range joins {choice}"
        ),
    }
}

/// Compares a query.
async fn compare(sessions: &Sessions, tables: &Tables, query: &Query, tally: &mut Tally) {
    let Query { sql, form, divides } = query;
    let Sessions { one, several, .. } = sessions;
    let case = format!("{}\n{}\n{sql}", sessions.label, tables.label);
    let expected = lines(one, sql).await;
    if expected.is_ok() && !is_defined(one, sql).await.expect(sql) {
        tally.undefined += 1;
        return;
    }
    let planned = async {
        let frame = datafusion_rmq::sql(several, sql).await?;
        frame.create_physical_plan().await
    };
    let tasks = match planned.await {
        Ok(plan) => most_tasks_of_joins(&plan, 1),
        Err(_) => 0,
    };
    let found = lines(several, sql).await;
    let counts = tally.forms.entry(form).or_default();
    counts[0] += 1;
    counts[1] += usize::from(tasks > 1);
    let (found, expected) = match (found, expected) {
        (Ok(found), Ok(expected)) => (found, expected),
        (Err(_), Err(error)) => {
            let error = error.strip_backtrace();
            let gist = error.lines().next().unwrap_or_default();
            let gist = gist.chars().take(70).collect();
            *tally.refused.entry(gist).or_default() += 1;
            return;
        }
        (Err(error), Ok(_)) => {
            let error = error.strip_backtrace();
            // DataFusion's nested loop join reads its inputs again where it has too little memory.
            let is_short =
                error.contains("Resources exhausted") || error.contains("was already consumed");
            if sessions.has_little_memory && is_short {
                tally.short_of_memory += 1;
            } else {
                tally.failures.push(format!("{case}\n{error}"));
            }
            return;
        }
        (Ok(_), Err(error)) => {
            let failure = format!("{case}\nan error on one node only: {error}");
            tally.failures.push(failure);
            return;
        }
    };
    // Lines around the table, and its header.
    counts[2] += usize::from(expected.len() > 5);
    if found != expected {
        let less = |from: &[String], other: &[String]| {
            let lines = from.iter().filter(|line| !other.contains(line));
            lines.take(20).cloned().collect::<Vec<_>>().join("\n")
        };
        tally.failures.push(format!(
            "{case}\n{} lines instead of {}\nmissing:\n{}\ntoo much:\n{}",
            found.len(),
            expected.len(),
            less(&expected, &found),
            less(&found, &expected)
        ));
    }
    let has_rows = tables.files_with_rows_of_q > 1 && tables.rows_of_p > 0;
    if has_rows && sessions.divides && *divides && tasks < 2 {
        tally.failures.push(format!("{case}\n{tasks} task"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_return_what_one_node_returns() {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let seeds = cases_with_queries("random queries on workers", &FAILED, CASES, QUERIES);
    for seed in seeds {
        println!("RMQ_TEST_CASE={seed}");
        let random = &mut Random::from_seed(seed);
        let tables = Tables::draw(random);
        let sessions = open(random, &tables).await;
        *tally.modes.entry(sessions.label.clone()).or_default() += QUERIES;
        for _ in 0..QUERIES {
            let query = Query::draw(random, &tables);
            let before = tally.failures.len();
            compare(&sessions, &tables, &query, &mut tally).await;
            for failure in &tally.failures[before..] {
                println!("==== RMQ_TEST_CASE={seed}\n{failure}");
            }
        }
    }
    let asked: usize = tally.forms.values().map(|counts| counts[0]).sum();
    let several: usize = tally.forms.values().map(|counts| counts[1]).sum();
    let refused: usize = tally.refused.values().sum();
    println!("form: queries, with joins in several tasks, with rows");
    for (form, counts) in &tally.forms {
        println!("  {form}: {counts:?}");
    }
    println!("refused by both: {:#?}", tally.refused);
    println!(
        "{asked} queries in {:?}, {several} with joins in several tasks, {refused} refused by both, {} short of memory; \
         {} without a defined result",
        begin.elapsed(),
        tally.short_of_memory,
        tally.undefined
    );
    assert!(
        tally.failures.is_empty(),
        "{} failures, printed above",
        tally.failures.len()
    );
    if !is_usual() {
        return;
    }
    assert!(several * 3 > asked, "{several} of {asked} in several tasks");
    assert!(refused * 10 < asked, "{refused} of {asked} refused");
    assert!(
        tally.short_of_memory * 20 < asked,
        "{} of {asked} short of memory",
        tally.short_of_memory
    );
}
