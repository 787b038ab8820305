//! Queries of all kinds drawn at random and compared with an interpreter, which computes what the SQL says with nested
//! loops and knows neither plans nor DataFusion.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one set of tables; `RMQ_CASES` makes it longer.
//! `RMQ_TEST_THREADS` is the number of threads that ask. With `RMQ_TEST_GO_ON=1` it prints all failures instead of the
//! first, and ends after `RMQ_TEST_SECONDS`.

mod datafusion_faults;
mod generator;
mod interpreter;
mod query;
mod schema;
mod sessions;
mod shrink;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use futures::FutureExt;
use rmq_testing::{Random, cases_with_queries, is_usual};

use generator::Generator;
use interpreter::Interpreter;
use query::Query;
use schema::Table;
use sessions::Session;
use shrink::Failure;
use value::{Kind, line, lines};

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 400;

/// Seeds of cases that once failed.
const FAILED: [u64; 12] = [
    11325673263448860018,
    4966894563183048496,
    17895193507544471560,
    1816029811688108779,
    15307460535634684233,
    2472623254185051629,
    16715526073130113843,
    13700156408972428961,
    12509434222622237399,
    3068139037491358886,
    1953881356335565259,
    6909758675949085467,
];

/// The time after which a query over a few rows is taken to have no end.
const PATIENCE: Duration = Duration::from_secs(40);

/// How the message of such a query begins. It is not made smaller, because each attempt would take as long.
const ENDLESS: &str = "no end";

/// The time after which one of the queries of a case is taken to block its thread.
const ENDLESS_CASE: Duration = Duration::from_secs(200);

/// Queries over the same tables, in the same session.
const QUERIES: usize = 10;

/// Errors that stand for documented limits. Parts of messages, and what they are about.
const LIMITS: &[(&str, &str)] = &[
    (
        "Physical plan does not support logical expression",
        "a correlation that no range join expresses",
    ),
    (
        "a subquery that depends on the query around it has no plan: ",
        "a subquery that general unnesting refuses",
    ),
    (
        "decorrelate_lateral_join",
        "a lateral join that no range join expresses",
    ),
    (
        "does not support undecorrelated Subquery",
        "a lateral join that no range join expresses",
    ),
    (
        "Optimizer rule 'decorrelate_predicate_subquery' failed",
        "a derived table that depends on the outer row",
    ),
    (
        "Optimizer rule 'scalar_subquery_to_join' failed",
        "a derived table that depends on the outer row",
    ),
    (
        "refers to the outermost query, which DataFusion can't resolve",
        "a derived table that depends on the outer row",
    ),
    (
        "can only be used in Projection, Filter, Aggregate plan nodes",
        "a subquery in another place",
    ),
    (
        "must be aggregated to return at most one row",
        "a correlation that no range join expresses",
    ),
    (
        "No field named __correlated_sq_",
        "a derived table that depends on the outer row",
    ),
    (
        "No field named __scalar_sq_",
        "a derived table that depends on the outer row",
    ),
    (
        "Invalid comparison operation",
        "an outer column of several types",
    ),
    ("Can't cast value", "an outer column of several types"),
    // Faults of DataFusion where the rest of the query keeps it from being asked alone.
    (
        "which would be ambiguous",
        "ORDER BY of a column that another output has the name of",
    ),
    (
        "inner future panicked during poll",
        "too little memory for DataFusion's nested loop join",
    ),
    (
        "Valid fields are __correlated_sq",
        "a derived table that depends on the outer row",
    ),
    (
        "Physical input schema should be the same",
        "a comparison of which DataFusion knows that it is never TRUE",
    ),
    (
        "duplicate unqualified field name",
        "names that DataFusion takes for the same",
    ),
    (
        "there is no plan for ",
        "IN with a LIMIT or a volatile function",
    ),
    (
        "null_aware anti join only supports single column join key",
        "NOT IN that no range join expresses",
    ),
    (
        "is not of the columns of one side",
        "a constant condition in an argument of range_join",
    ),
    (
        " of the subquery: write LEFT JOIN LATERAL",
        "a correlated subquery in an argument of range_join",
    ),
    (
        "Ordering direction required for DISTINCT with limit",
        "DISTINCT with a LIMIT over sorted rows",
    ),
    (
        "within too many others, whose conditions it would have to repeat",
        "arguments of range functions nested too deeply",
    ),
    ("Resources exhausted", "too little memory"),
    (
        "partition not used yet",
        "too little memory for DataFusion's nested loop join",
    ),
    (
        "Left side produced no data to spill",
        "too little memory for DataFusion's nested loop join",
    ),
];

/// Operators of `DataFusion` whose rows are wrong, wherever they are in a plan.
const PLANS: &[(&str, &str)] = &[("PiecewiseMergeJoin", "DataFusion's piecewise merge join")];

/// Errors of `DataFusion`'s piecewise merge join.
const PIECEWISE: [&str; 2] = ["entered unreachable code", "Unsupported operator for PWMJ"];

/// An error of `DataFusion`'s sort-merge join where a condition names columns that are NOT NULL.
const SORT_MERGE: &str = "is declared as non-nullable but contains null values";

/// Errors of a session that lacks the extension's functions.
const OUR_FUNCTIONS: [&str; 3] = [
    "Invalid function 'range_",
    "Invalid function 'frame_",
    "table function 'range_join'",
];

/// How a query ended.
#[derive(Debug)]
enum Outcome {
    /// As the interpreter says, and whether the plan has a range join.
    Right(bool),
    /// With an error that stands for a documented limit.
    Refused(&'static str),
    /// Otherwise: how, and with which plan.
    Wrong(String, String),
}

/// The rows of a query, and the plan.
async fn answer(ctx: &SessionContext, sql: &str) -> Result<(Vec<String>, String)> {
    let frame = ctx.sql(sql).await?;
    let plan = frame.create_physical_plan().await?;
    let physical = plan.schema();
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let batches = collect(plan, ctx.task_ctx()).await?;
    conforms(&batches, &physical)?;
    Ok((lines(&batches)?, text))
}

/// The plan of a query, or why it has none.
async fn plan_of(ctx: &SessionContext, sql: &str) -> String {
    let plan = async { ctx.sql(sql).await?.create_physical_plan().await };
    match plan.await {
        Ok(plan) => displayable(plan.as_ref()).indent(false).to_string(),
        Err(error) => error.strip_backtrace(),
    }
}

/// Checks that there is no NULL where there should be none.
fn conforms(batches: &[RecordBatch], schema: &Schema) -> Result<()> {
    for batch in batches {
        let own = batch.schema();
        for ((field, own), column) in schema
            .fields()
            .iter()
            .zip(own.fields())
            .zip(batch.columns())
        {
            if column.logical_null_count() > 0 && !(field.is_nullable() && own.is_nullable()) {
                let name = field.name();
                return Err(DataFusionError::External(
                    format!("NULLs in column {name}, which has none by its schema").into(),
                ));
            }
        }
    }
    Ok(())
}

/// Asks one query.
async fn ask(ctx: &SessionContext, tables: &[Table], query: &Query) -> Outcome {
    let rows = match Interpreter::run(tables, query) {
        Ok(rows) => rows,
        Err(reason) => return Outcome::Refused(reason),
    };
    let mut expected: Vec<String> = rows.iter().map(|row| line(row)).collect();
    let statement = query.statement();
    let answered = AssertUnwindSafe(answer(ctx, &statement)).catch_unwind();
    let Ok(answered) = tokio::time::timeout(PATIENCE, answered).await else {
        let plan = plan_of(ctx, &statement).await;
        return match PLANS.iter().find(|(part, _)| plan.contains(part)) {
            Some((_, limit)) => Outcome::Refused(limit),
            None => Outcome::Wrong(format!("{ENDLESS} within {PATIENCE:?}\n"), plan),
        };
    };
    let error = match answered {
        Ok(Ok((mut found, plan))) => {
            if query.order.is_empty() {
                found.sort_unstable();
                expected.sort_unstable();
            }
            if found == expected {
                return Outcome::Right(plan.contains("RangeJoinExec"));
            }
            let is_limited = matches!(
                ctx.runtime_env().memory_pool.memory_limit(),
                MemoryLimit::Finite(_)
            );
            if is_limited && plan.contains("NestedLoopJoinExec") {
                return Outcome::Refused("too little memory for DataFusion's nested loop join");
            }
            if let Some((_, limit)) = PLANS.iter().find(|(part, _)| plan.contains(part)) {
                return Outcome::Refused(limit);
            }
            let less = |from: &[String], other: &[String]| {
                let mut other = other.to_vec();
                let mut rows = from.to_vec();
                rows.retain(|row| {
                    other
                        .iter()
                        .position(|o| o == row)
                        .map(|i| other.remove(i))
                        .is_none()
                });
                rows
            };
            let message = format!(
                "{} rows instead of {}\n  missing: {:?}\n  too much: {:?}\n  expected: {expected:?}\n  found: {found:?}\n",
                found.len(),
                expected.len(),
                less(&expected, &found),
                less(&found, &expected)
            );
            return Outcome::Wrong(message, plan);
        }
        Ok(Err(error)) => error.strip_backtrace(),
        Err(panic) => match panic.downcast::<String>() {
            Ok(message) => format!("panic: {message}"),
            Err(panic) => format!("panic: {:?}", panic.downcast_ref::<&str>()),
        },
    };
    let state = ctx.state();
    let optimizer = &state.config_options().optimizer;
    match LIMITS.iter().find(|(part, _)| error.contains(part)) {
        Some((_, limit)) => Outcome::Refused(limit),
        None if optimizer.enable_piecewise_merge_join
            && PIECEWISE.iter().any(|part| error.contains(part)) =>
        {
            Outcome::Refused(PLANS[0].1)
        }
        None if !optimizer.prefer_hash_join && error.contains(SORT_MERGE) => {
            Outcome::Refused("a condition of a sort-merge join")
        }
        None if is_ordered_by_comparison(&error) => {
            Outcome::Refused("a window that is ordered by a comparison")
        }
        None => Outcome::Wrong(error, String::new()),
    }
}

/// Whether a plan fails for the order of a window function, which is that of a comparison.
fn is_ordered_by_comparison(error: &str) -> bool {
    let mut orders = error.split("ORDER BY [").skip(1);
    error.contains("does not satisfy order requirements")
        && orders.any(|order| {
            let (keys, _) = order.split_once("] ROWS").unwrap_or((order, ""));
            [" < ", " <= ", " > ", " >= "]
                .iter()
                .any(|op| keys.contains(op))
        })
}

/// A session with the tables.
async fn open(
    session: &Session,
    tables: &[Table],
    folder: &std::path::Path,
) -> Result<SessionContext> {
    let ctx = session.open();
    for (number, table) in tables.iter().enumerate() {
        table.register(&ctx, &format!("t{number}"), folder).await?;
    }
    Ok(ctx)
}

/// Asks a query in a session of its own.
async fn ask_alone(failure: &Failure) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let ctx = match open(&failure.session, &failure.tables, folder.path()).await {
        Ok(ctx) => ctx,
        Err(error) => return Outcome::Refused(Box::leak(error.to_string().into_boxed_str())),
    };
    for view in failure.query.views() {
        let sql = format!("CREATE VIEW {} AS {}", view.name, view.query);
        if ctx.sql(&sql).await.is_err() {
            return Outcome::Refused("a view");
        }
    }
    ask(&ctx, &failure.tables, &failure.query).await
}

/// Whether `DataFusion` alone gives the same wrong answer, or an error of the kind, so that it is not the extension's.
/// Queries with the extension's functions are answered without its rules instead.
/// The extension answers for NOT IN, whose NULLs `DataFusion` 55 gets wrong.
async fn is_shared(failure: &Failure, message: &str, plan: &str) -> bool {
    let has_other_rows = message.contains(OTHER_ROWS);
    match ask_without(failure).await {
        Outcome::Wrong(other, _) if has_other_rows => {
            other == message && !plan.contains("null_aware")
        }
        Outcome::Wrong(other, _) => {
            gist(&other) == gist(message) && !message.contains("null_aware")
        }
        _ => false,
    }
}

/// What is between the numbers of rows in the message of a wrong answer.
const OTHER_ROWS: &str = " rows instead of ";

/// Asks a query in a session without the extension, or without its rules if the query has its functions.
async fn ask_without(failure: &Failure) -> Outcome {
    let without = |session| Failure {
        session,
        ..failure.clone()
    };
    let outcome = ask_alone(&without(failure.session.plain())).await;
    match &outcome {
        Outcome::Wrong(error, _) if OUR_FUNCTIONS.iter().any(|part| error.contains(part)) => {
            ask_alone(&without(failure.session.without_rules())).await
        }
        _ => outcome,
    }
}

/// What an error is about, without names: its first words.
fn gist(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    if first.contains(OTHER_ROWS) {
        return "other rows".into();
    }
    first
        .chars()
        .filter(|c| !c.is_ascii_digit())
        .take(60)
        .collect()
}

/// Makes a failure as small as it goes. One that shows only sometimes stays as it is.
fn shrink(
    runtime: &tokio::runtime::Runtime,
    mut failure: Failure,
    mut message: String,
) -> (Failure, String) {
    let (mut tries, begin) = (0, Instant::now());
    'smaller: loop {
        for simpler in failure.simpler() {
            tries += 1;
            if tries > 1500 || begin.elapsed() > PATIENCE {
                break 'smaller;
            }
            // A part of a query may need what another part had: the interpreter panics then.
            let tried = catch_unwind(AssertUnwindSafe(|| runtime.block_on(ask_alone(&simpler))));
            if let Ok(Outcome::Wrong(other, plan)) = tried
                && gist(&other) == gist(&message)
                && !runtime.block_on(is_shared(&simpler, &other, &plan))
            {
                (failure, message) = (simpler, other + &plan);
                continue 'smaller;
            }
        }
        break;
    }
    (failure, message)
}

/// How often each shape was asked and answered.
#[derive(Debug, Default)]
struct Tally {
    shapes: BTreeMap<&'static str, [usize; 2]>,
    refused: BTreeMap<&'static str, usize>,
    /// Wrong answers that `DataFusion` alone gives, too.
    shared: BTreeMap<String, usize>,
    asked: usize,
    answered: usize,
    range_joins: usize,
    failures: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            answered,
            range_joins,
            failures,
            ..
        } = self;
        let shared: usize = self.shared.values().sum();
        let refused: usize = self.refused.values().sum();
        writeln!(
            f,
            "random queries: {asked} asked, {answered} answered, {range_joins} with a range join"
        )?;
        for (shape, [asked, answered]) in &self.shapes {
            writeln!(f, "  {asked:6} asked, {answered:6} answered: {shape}")?;
        }
        writeln!(f, "{refused} refused:")?;
        for (limit, count) in &self.refused {
            writeln!(f, "  {count:6} {limit}")?;
        }
        writeln!(f, "{shared} as wrong without the extension:")?;
        for (gist, count) in &self.shared {
            writeln!(f, "  {count:6} {gist}")?;
        }
        write!(f, "{failures} failures")
    }
}

/// Asks the queries of a case. Returns the first that fails.
fn run_case(
    runtime: &tokio::runtime::Runtime,
    seed: u64,
    tally: &Mutex<Tally>,
) -> Vec<(usize, Failure, String)> {
    let random = &mut Random::from_seed(seed);
    let key = [
        Kind::Int,
        Kind::Int,
        Kind::Float,
        Kind::Time,
        Kind::Time,
        Kind::Date,
    ][random.below(6)];
    let tables: Vec<Table> = (0..3).map(|_| Table::draw(random, key)).collect();
    let session = Session::draw(random);
    let folder = tempfile::tempdir().expect("a folder");
    let ctx = runtime
        .block_on(open(&session, &tables, folder.path()))
        .expect("tables");
    let mut failures = vec![];
    let mut generator = Generator::new(random, &tables, key);
    for number in 0..2 {
        let named = generator.name_query(number);
        let view = format!("CREATE VIEW {} AS {}", named.0.name, named.0.query);
        // A query that is refused is none to build on.
        if runtime.block_on(ctx.sql(&view)).is_ok() {
            generator.add_named(named);
        }
    }
    for number in 0..QUERIES {
        generator.shapes.clear();
        let depth = generator.random.below(4);
        let (query, ..) = generator.query(depth);
        let outcome = runtime.block_on(ask(&ctx, &tables, &query));
        let failure = Failure {
            session: session.clone(),
            tables: tables.clone(),
            query,
        };
        let shared = match &outcome {
            Outcome::Wrong(message, plan) => runtime.block_on(is_shared(&failure, message, plan)),
            _ => false,
        };
        let mut tally = tally.lock().expect("no panic while it is held");
        tally.asked += 1;
        let is_right = matches!(outcome, Outcome::Right(_));
        for shape in &generator.shapes {
            let counts = tally.shapes.entry(shape).or_default();
            counts[0] += 1;
            counts[1] += usize::from(is_right);
        }
        match outcome {
            Outcome::Right(is_range_join) => {
                tally.answered += 1;
                tally.range_joins += usize::from(is_range_join);
            }
            Outcome::Refused(limit) => *tally.refused.entry(limit).or_default() += 1,
            Outcome::Wrong(message, _) if shared => {
                *tally.shared.entry(gist(&message)).or_default() += 1
            }
            Outcome::Wrong(message, plan) => {
                tally.failures += 1;
                failures.push((number, failure, message + &plan));
            }
        }
    }
    failures
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_queries_mean_what_they_say() {
    let mut seeds = cases_with_queries("random queries", &FAILED, CASES, QUERIES);
    if is_usual() {
        // Of the fixed seed only: a fault of DataFusion that is not listed yet must not fail a run at random.
        seeds.truncate(FAILED.len() + CASES.div_ceil(2).div_ceil(QUERIES));
    }
    let threads = number("RMQ_TEST_THREADS").unwrap_or(1);
    let goes_on = number("RMQ_TEST_GO_ON").is_some();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let tally = Mutex::new(Tally::default());
    // How often each kind of failure was seen. The first of them are made small.
    let seen = Mutex::new(BTreeMap::<String, usize>::new());
    let begin = Instant::now();
    let seconds = number("RMQ_TEST_SECONDS").map(|seconds| seconds as u64);
    // The cases that are run now, since when.
    let running = Mutex::new(BTreeMap::<u64, Instant>::new());
    let work = || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime
            .worker_threads(2)
            .thread_stack_size(16 << 20)
            .enable_all()
            .build()
            .expect("a runtime");
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let has_failed = failed.load(Ordering::Relaxed) > 0;
            if has_failed && !goes_on || seconds.is_some_and(|s| begin.elapsed().as_secs() >= s) {
                break;
            }
            let lock = || running.lock().expect("no panic while it is held");
            lock().insert(*seed, Instant::now());
            let failures = run_case(&runtime, *seed, &tally);
            lock().remove(seed);
            for (number, mut failure, mut message) in failures {
                failed.fetch_add(1, Ordering::Relaxed);
                if seen
                    .lock()
                    .expect("no panic while it is held")
                    .entry(gist(&message))
                    .and_modify(|n| *n += 1)
                    .or_insert(1)
                    < &mut 5
                    && !message.starts_with(ENDLESS)
                {
                    (failure, message) = shrink(&runtime, failure, message);
                }
                println!(
                    "==== RMQ_TEST_CASE={seed}, query {number}\n{}{message}",
                    failure.sql()
                );
                println!(
                    "---- DataFusion alone: {:?}\n",
                    runtime.block_on(ask_without(&failure))
                );
            }
        }
    };
    std::thread::scope(|scope| {
        let start = || {
            let thread = std::thread::Builder::new().stack_size(64 << 20);
            thread.spawn_scoped(scope, work).expect("a thread")
        };
        let workers: Vec<_> = (0..threads).map(|_| start()).collect();
        // A case whose query never yields can't be stopped: the others go on, and the process ends without it.
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let running = running.lock().expect("no panic while it is held");
            let is_over =
                seconds.is_some_and(|s| begin.elapsed().as_secs() > s + PATIENCE.as_secs());
            let endless = || {
                running
                    .iter()
                    .filter(|(_, since)| is_over || since.elapsed() > ENDLESS_CASE)
            };
            let working = workers
                .iter()
                .filter(|worker| !worker.is_finished())
                .count();
            let is_stuck = match goes_on {
                true => endless().count() == working,
                false => endless().count() > 0,
            };
            if working > 0 && !is_stuck && !is_over {
                continue;
            }
            for (case, _) in endless() {
                println!("==== RMQ_TEST_CASE={case} {ENDLESS} within {ENDLESS_CASE:?}");
            }
            if working > 0 {
                println!("{}", tally.lock().expect("no panic while it is held"));
                std::process::exit(1);
            }
            break;
        }
    });
    let tally = tally.into_inner().expect("no panic while it is held");
    let seconds = begin.elapsed().as_secs_f64();
    println!("{tally}");
    println!(
        "{:.1} queries a second on {threads} threads",
        tally.asked as f64 / seconds
    );
    assert_eq!(failed.load(Ordering::Relaxed), 0, "failures, printed above");
    assert!(
        tally.answered * 10 > tally.asked * 6 || !is_usual(),
        "{tally:?}"
    );
}
