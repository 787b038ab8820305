//! Plans that are divided into tasks, as an engine for several machines divides them, compared with the plan of one
//! node: `rmq.join_mode = 'collected'` says in the distributions of operators what a task needs.
//!
//! Such an engine knows plans by these alone. Exchanges are the ends of a stage, whose tasks each read a slice of its
//! inputs, but a copy of all rows, in any order, of an input that is required in a single partition. An operator that
//! requires this of all its inputs is one task.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::DataType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{Distribution, Partitioning};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, collect_partitioned, displayable,
};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::parts::OrderedRowsExec;
use datafusion_rmq::physical_plan::PrepareIndexesExec;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::partitioned::{planned, queries, range_join, tables};
use crate::range_join::{answer, lines};
use crate::support::{run, set};

/// The tasks of a stage.
const TASKS: usize = 3;

/// The rows of each partition.
type Rows = Vec<Vec<RecordBatch>>;

/// How the tasks of a stage read an input.
#[derive(Clone, Copy, PartialEq)]
enum Reads {
    /// Only one task reads it.
    Whole,
    /// Each task reads all rows, in another order than one that alone reads them.
    Copies,
    Slices,
    Partitions,
}

/// The rows of a plan that is divided into tasks: the partitions of all tasks.
fn run_in_tasks(plan: Arc<dyn ExecutionPlan>, ctx: Arc<TaskContext>) -> BoxFuture<'static, Rows> {
    async move {
        let mut rows = vec![];
        for task in tasks(plan, Reads::Slices, Arc::clone(&ctx)).await {
            rows.extend(execute(task, &ctx).await);
        }
        rows
    }
    .boxed()
}

/// The rows of an operator over all rows of its inputs.
async fn run_once(plan: &Arc<dyn ExecutionPlan>, ctx: &Arc<TaskContext>) -> Rows {
    let mut children = vec![];
    for child in plan.children() {
        let child = Arc::clone(child);
        children.push(if is_exchange(plan) {
            let schema = child.schema();
            let rows = run_in_tasks(child, Arc::clone(ctx)).await;
            MemorySourceConfig::try_new_exec(&rows, schema, None).expect("rows") as _
        } else {
            tasks(child, Reads::Whole, Arc::clone(ctx)).await.remove(0)
        });
    }
    execute(over(plan, children), ctx).await
}

/// The plan of each task of the stage that ends with `plan`, whose inputs are read so.
fn tasks(
    plan: Arc<dyn ExecutionPlan>,
    reads: Reads,
    ctx: Arc<TaskContext>,
) -> BoxFuture<'static, Vec<Arc<dyn ExecutionPlan>>> {
    async move {
        // Its plan is hidden, so that each task executes all of it.
        if plan.is::<OrderedRowsExec>() {
            return vec![plan; TASKS];
        }
        let requirements = plan.input_distribution_requirements();
        let needs_all = |child: &Distribution| matches!(child, Distribution::SinglePartition);
        let needs_all = requirements.per_child_distributions().map(needs_all);
        let needs_all: Vec<bool> = needs_all.collect();
        // A leaf, too: it requires nothing.
        if is_exchange(&plan) || needs_all.iter().all(|needs| *needs) {
            let is_hash =
                |partitioning: &Partitioning| matches!(partitioning, Partitioning::Hash(..));
            let repartition = plan.downcast_ref::<RepartitionExec>();
            let reads = match repartition {
                Some(r) if reads == Reads::Slices && is_hash(r.partitioning()) => Reads::Partitions,
                _ => reads,
            };
            let rows = run_once(&plan, &ctx).await;
            let parts = (0..TASKS).map(|task| part_of(&rows, task, reads));
            let sources = parts.map(|part| {
                MemorySourceConfig::try_new_exec(&part, plan.schema(), None).expect("rows") as _
            });
            return sources.collect();
        }
        let mut children = vec![vec![]; TASKS];
        for (child, needs_all) in plan.children().into_iter().zip(needs_all) {
            let reads = match reads {
                Reads::Slices if needs_all => Reads::Copies,
                reads => reads,
            };
            let child = tasks(Arc::clone(child), reads, Arc::clone(&ctx)).await;
            for (children, child) in children.iter_mut().zip(child) {
                children.push(child);
            }
        }
        let plans = children.into_iter().map(|children| over(&plan, children));
        plans.collect()
    }
    .boxed()
}

/// What a task reads of the rows of an input.
fn part_of(rows: &Rows, task: usize, reads: Reads) -> Rows {
    let part = |(number, batches): (usize, &Vec<RecordBatch>)| match reads {
        Reads::Whole => batches.clone(),
        Reads::Copies => batches.iter().rev().cloned().collect(),
        Reads::Partitions if number % TASKS == task => batches.clone(),
        Reads::Partitions => vec![],
        Reads::Slices => {
            let slice = |batch: &RecordBatch| {
                let [begin, end] = [task, task + 1].map(|task| task * batch.num_rows() / TASKS);
                batch.slice(begin, end - begin)
            };
            batches.iter().map(slice).collect()
        }
    };
    rows.iter().enumerate().map(part).collect()
}

/// Whether an engine ends a stage here.
fn is_exchange(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let repartition = plan.downcast_ref::<RepartitionExec>();
    plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>()
        || repartition.is_some_and(|r| matches!(r.partitioning(), Partitioning::Hash(..)))
}

fn over(
    plan: &Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Arc<dyn ExecutionPlan> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let plan = Arc::clone(plan).replace_children(children, options);
    plan.expect("the same inputs")
}

async fn execute(plan: Arc<dyn ExecutionPlan>, ctx: &Arc<TaskContext>) -> Rows {
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let rows = collect_partitioned(plan, Arc::clone(ctx)).await;
    rows.unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The lines of a plan that is divided into tasks.
async fn divided(plan: Arc<dyn ExecutionPlan>, ctx: &SessionContext) -> Vec<String> {
    let rows = run_in_tasks(plan, ctx.task_ctx()).await;
    lines(&rows.concat())
}

/// A session with range joins in this mode.
fn session(partitions: usize, mode: &str) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(100);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.range_joins", "always");
    set(&ctx, "rmq.join_mode", mode);
    // Also of small files.
    set(
        &ctx,
        "datafusion.optimizer.repartition_file_min_size",
        "100",
    );
    ctx
}

/// Queries whose result depends on the order of rows: many rows of `p` have equal `v`.
fn ordered_queries() -> Vec<String> {
    let queries = [
        "SELECT q.id, (SELECT p.s FROM p WHERE p.g = q.g AND p.v <= q.v ORDER BY p.v DESC LIMIT 1) FROM q",
        "SELECT q.id, (SELECT p.s FROM p WHERE p.v >= q.v ORDER BY p.v LIMIT 1) FROM q",
        "SELECT q.id, (SELECT p.s FROM p WHERE p.k <= 30 AND p.v >= q.v ORDER BY p.v LIMIT 1) FROM q",
        "SELECT q.id, x.s FROM q, LATERAL (SELECT p.s FROM p WHERE p.g = q.g AND p.v <= q.v ORDER BY p.v DESC LIMIT 3) x",
        "SELECT q.id, x.s FROM q LEFT JOIN LATERAL (SELECT p.s FROM p WHERE p.v <= q.v ORDER BY p.g, p.v LIMIT 2) x ON true",
        "SELECT q.id, first_value(p.s ORDER BY p.v), last_value(p.id ORDER BY p.v) FROM q JOIN p ON p.g = q.g AND p.v >= q.v GROUP BY q.id",
        "SELECT q.id, arg_max(p.s, p.k) FROM q JOIN p ON p.g = q.g AND p.v >= q.v GROUP BY q.id",
        "SELECT * FROM range_join('q', 'p', 'g', $$p.v BETWEEN q.v AND q.v + 3$$, 'first_value(s) AS f, min(s) AS m', 'include prevailing')",
        // A union, and a join in the build side.
        "SELECT q.id, (SELECT x.s FROM (SELECT s, v FROM p UNION ALL SELECT s, v + 1 FROM q) x WHERE x.v <= q.v ORDER BY x.v DESC LIMIT 1) FROM q",
        "SELECT q.id, (SELECT x.s FROM range_join('p', 'q AS r', 'g', $$r.k > p.k$$, 'count(*) AS n') x \
         WHERE x.g = q.g AND x.v <= q.v ORDER BY x.v DESC LIMIT 1) AS s FROM q",
    ];
    queries.map(str::to_string).to_vec()
}

/// Copies the tables of one session to others: in one partition, or as Parquet files in a folder.
async fn copy_tables(from: &SessionContext, to: &[&SessionContext], folder: Option<&Path>) {
    for name in ["q", "p"] {
        let all = format!("SELECT * FROM {name} ORDER BY id");
        let Some(folder) = folder else {
            let rows = run(from, &all).await.expect("a table");
            for ctx in to {
                ctx.register_batch(name, rows.clone()).expect("a new table");
            }
            continue;
        };
        let folder = folder.join(name);
        std::fs::create_dir(&folder).expect("a new folder");
        for file in 0..5 {
            let rows = format!(
                "SELECT * FROM {name} WHERE id BETWEEN {file} * 200 AND {file} * 200 + 199 ORDER BY id"
            );
            let path = folder.join(format!("{file}.parquet"));
            let copy = format!("COPY ({rows}) TO '{}' STORED AS PARQUET", path.display());
            run(from, &copy).await.expect("a file");
        }
        for ctx in to {
            let table = format!(
                "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}/'",
                folder.display()
            );
            run(ctx, &table).await.expect("a new table");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collected_joins_return_what_one_node_returns() {
    let memory = SessionContext::new();
    tables(&[&memory], &DataType::Int64);
    let mut common = queries("p.g = q.g");
    common.extend(ordered_queries());
    let (mut one_task, mut several, mut wrong_if_shared) = (0, 0, 0);
    for (partitions, storage, pruning) in [
        (1, "partitions", "auto"),
        (4, "partitions", "auto"),
        (4, "one partition", "auto"),
        (4, "files", "auto"),
        (4, "files", "always"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let ctxs = ["collected", "shared"].map(|mode| session(partitions, mode));
        let both: Vec<&SessionContext> = ctxs.iter().collect();
        match storage {
            "partitions" => tables(&both, &DataType::Int64),
            "one partition" => copy_tables(&memory, &both, None).await,
            _ => copy_tables(&memory, &both, Some(folder.path())).await,
        }
        let [ctx, shared] = &ctxs;
        set(ctx, "rmq.pruning", pruning);
        let mut all = common.clone();
        if storage == "partitions" && partitions > 1 {
            // Of many pairs.
            all.extend(queries("true"));
        }
        for sql in &all {
            let (expected, _) = answer(shared, sql).await.expect(sql);
            let plan = planned(ctx, sql).await;
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert!(text.contains(", mode=Collected, "), "{sql}\n{text}");
            let join = range_join(&plan).expect("a range join");
            if join.needs_one_task() {
                one_task += 1;
            } else {
                several += 1;
            }
            let found = divided(Arc::clone(&plan), ctx).await;
            assert!(found == expected, "{storage}, {partitions}: {sql}\n{text}");
            // Undivided as well.
            let (found, _) = answer(ctx, sql).await.expect(sql);
            assert!(found == expected, "{storage}, {partitions}: {sql}\n{text}");

            if storage == "partitions" {
                let plan = planned(shared, sql).await;
                wrong_if_shared += usize::from(divided(plan, shared).await != expected);
            }
        }
    }
    println!(
        "{one_task} joins in one task, {several} in several; {wrong_if_shared} wrong if shared"
    );
    assert!(one_task > 50 && several > 50 && wrong_if_shared > 50);
}

/// Both sides of partitioned joins are divided by their keys, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn partitioned_joins_return_what_one_node_returns() {
    for partitions in [1, 4] {
        let ctx = session(partitions, "partitioned");
        tables(&[&ctx], &DataType::Int64);
        let single = session(partitions, "partitioned");
        copy_tables(&ctx, &[&single], None).await;
        for ctx in [ctx, single] {
            for sql in queries("p.g = q.g") {
                let plan = planned(&ctx, &sql).await;
                let join = range_join(&plan).expect("a range join");
                assert_eq!(join.needs_one_task(), partitions == 1, "{sql}");
                let (expected, _) = answer(&ctx, &sql).await.expect(&sql);
                let found = divided(plan, &ctx).await;
                assert!(found == expected, "{partitions}: {sql}");
            }
        }
    }
}

/// What each input is, and which of them are required in one partition.
#[tokio::test(flavor = "multi_thread")]
async fn build_rows_and_the_order_of_rows_need_one_task() {
    let ctx = session(4, "collected");
    tables(&[&ctx], &DataType::Int64);
    let on = "ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 30";
    for (sql, is_one) in [
        (format!("SELECT q.id, p.id FROM q JOIN p {on}"), false),
        (format!("SELECT q.id, p.id FROM q LEFT JOIN p {on}"), false),
        (format!("SELECT q.id, p.id FROM q FULL JOIN p {on}"), true),
        (
            "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k >= q.k) FROM q".into(),
            false,
        ),
        // Rows in the order of a scan are the same in each task, those of a join are not.
        (ordered_queries().remove(0), false),
        (
            "SELECT q.id, (SELECT x.s FROM (SELECT p.s, p.v FROM p JOIN q AS r ON r.id = p.id) x \
             WHERE x.v <= q.v ORDER BY x.v DESC LIMIT 1) FROM q"
                .into(),
            true,
        ),
    ] {
        let plan = planned(&ctx, &sql).await;
        let join = range_join(&plan).expect("a range join");
        assert_eq!(join.needs_one_task(), is_one, "{sql}");
        let required = join.input_distribution_requirements();
        let required: Vec<bool> = required
            .per_child_distributions()
            .map(|d| matches!(d, Distribution::SinglePartition))
            .collect();
        assert_eq!(required, [is_one, true], "{sql}");
        let is_single = [join.probe(), join.build()]
            .map(|side| side.output_partitioning().partition_count() == 1);
        assert_eq!(is_single, required.as_slice(), "{sql}");
    }
}

/// An index and the expression that looks it up are in one task.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_of_expressions_are_prepared_from_a_single_partition() {
    let sql = "SELECT q.id, p.id FROM q LEFT JOIN p ON range_min('p.v', q.h, p.h) = 3";
    let plans = ["auto", "collected"].map(|mode| async move {
        let ctx = session(4, mode);
        tables(&[&ctx], &DataType::Int64);
        let plan = planned(&ctx, sql).await;
        let prepare = prepared(&plan).expect("an index is prepared");
        let partitions = prepare.output_partitioning().partition_count();
        (partitions, answer(&ctx, sql).await.expect(sql).0)
    });
    let [auto, collected] = plans;
    let ((several, expected), (one, found)) = (auto.await, collected.await);
    assert!(several > 1 && one == 1, "{several}, {one}");
    assert_eq!(found, expected);
}

/// The operator of a plan that prepares indexes.
fn prepared(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    if plan.is::<PrepareIndexesExec>() {
        return Some(plan);
    }
    plan.children().into_iter().find_map(prepared)
}
