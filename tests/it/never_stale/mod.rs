//! Changes of all kinds and queries of all kinds in random order, over all that is kept: no answer is one of tables as
//! they were.
//!
//! Two sessions share their indexes. A third, which is another process, shares `rmq.index_directory` with them, as does
//! a fourth, whose devices are threads. Every answer is compared with that of a session that keeps nothing and has the
//! same tables.
//!
//! `RMQ_OPERATIONS` sets the number of operations of each run.

mod changes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::{SessionStateBuilderExt, SharedIndexes};
use futures::{StreamExt, TryStreamExt};
use rmq_testing::{Random, is_usual, operations, runs};
use tempfile::TempDir;

use crate::appended::{FUNCTIONS, query};
use crate::fake::Fake;
use crate::kept::{QUERIES, explained, joining};
use crate::kept_append::{MERGED, WHOLE};
use crate::kept_on_gpus::ON_DEVICES;
use crate::never_stale::changes::{Rows, create, external, views, write_first_files};
use crate::range_join::lines;
use crate::spilling::planned;
use crate::support::{run, set};
use crate::unique_source::metric;

/// `p` is in memory, in one partition at first, `w` in several, and `f` in files. Views `v_…` filter them, and `o_…`
/// order them.
const TABLES: [[&str; 3]; 3] = [
    ["p", "v_p", "o_p"],
    ["w", "v_w", "o_w"],
    ["f", "v_f", "o_f"],
];

const COLUMNS: [&str; 6] = ["id", "s", "t", "u", "v", "f"];

const SESSIONS: usize = 4;

/// Metrics of plans and other events, without which a test is none of all that is kept.
const MET: [&str; 13] = [
    "index_kept",
    "kept on devices",
    "index_segments",
    "index_loaded",
    "index_chunks",
    "indexes_reused",
    "indexes_extended",
    "kept of files",
    "evicted",
    "named",
    "same size and time",
    "read after a change",
    "error of a changed file",
];

/// The operations so far, the last of which a failing run prints.
#[derive(Default)]
struct History(Vec<String>);

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = &self.0[self.0.len().saturating_sub(40)..];
            println!("{}\nline {}", last.join("\n"), self.0.len());
        }
    }
}

struct World {
    /// Of plans.
    partitions: usize,
    data: TempDir,
    indexes: TempDir,
    shared: SharedIndexes,
    sessions: Vec<SessionContext>,
    /// Keeps nothing.
    plain: SessionContext,
    /// The rows of each file.
    files: BTreeMap<usize, Rows>,
    last_change: Instant,
    next_id: usize,
    /// A query and the table that it searches.
    recent: (String, &'static str),
    running: Option<Running>,
    met: BTreeMap<&'static str, usize>,
    history: History,
}

/// A query that has been planned, and may have begun.
struct Running {
    ctx: SessionContext,
    sql: String,
    reads_files: bool,
    expected: Vec<String>,
    plan: Arc<dyn ExecutionPlan>,
    begun: Option<SendableRecordBatchStream>,
    read: Vec<RecordBatch>,
}

async fn answer(ctx: &SessionContext, sql: &str) -> Result<(Arc<dyn ExecutionPlan>, Vec<String>)> {
    let plan = planned(ctx, sql).await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((plan, lines(&batches)))
}

async fn execute(ctx: &SessionContext, sql: &str) {
    run(ctx, sql).await.expect(sql);
}

fn put(ctx: &SessionContext, name: &str, table: Arc<dyn TableProvider>) {
    ctx.deregister_table(name).expect(name);
    ctx.register_table(name, table).expect(name);
}

/// A session with the tables of another one, or with new ones.
async fn session(
    indexes: &SharedIndexes,
    partitions: usize,
    tables: Option<&SessionContext>,
    data: &TempDir,
) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let builder = SessionStateBuilder::new().with_config(config.with_batch_size(256));
    let builder = builder.with_default_features().with_rmq_sharing(indexes);
    let ctx = joining(SessionContext::new_with_state(builder.build()));
    set(&ctx, "rmq.engine", "cpu");
    // DataFusion would go on with what it knows of files that are written anew with their size and time.
    for cache in ["list_files", "metadata", "file_statistics"] {
        let sql = format!("SET datafusion.runtime.{cache}_cache_limit = '0K'");
        execute(&ctx, &sql).await;
    }
    if let Some(tables) = tables {
        for name in ["p", "w", "q"] {
            put(&ctx, name, tables.table_provider(name).await.expect(name));
        }
    } else {
        create(&ctx, "p", (0, 1500, 0)).await;
        create(&ctx, "w", (0, 1500, 1)).await;
        let q = "CREATE TABLE q AS SELECT value AS id, concat('s', value % 6) AS s, value * 131 % 2050 - 5 AS a, \
                 value * 131 % 2050 + value % 60 - 5 AS b, value % 100 AS v FROM range(0, 100)";
        execute(&ctx, q).await;
    }
    external(&ctx, data).await;
    views(&ctx).await;
    ctx
}

/// A query of a random form, and the table that it searches.
fn query_of(random: &mut Random) -> (String, &'static str) {
    let table = TABLES[[0, 1, 2, 2][random.below(4)]];
    let is_view = random.below(4) == 0;
    if random.below(5) < 2 {
        let table = table[if is_view { 2 } else { 0 }];
        // Some may be answered of columns that stay in files.
        let sql = match random.below(2) {
            0 => query(random, &COLUMNS, &FUNCTIONS),
            _ => query(random, &["t", "u", "v", "f"], &FUNCTIONS[..4]),
        };
        return (sql.replace("'t.", &format!("'{table}.")), table);
    }
    let table = table[usize::from(is_view)];
    let sql = match random.below(10) {
        0 => WHOLE[random.below(WHOLE.len())].1,
        1 => QUERIES[random.below(QUERIES.len())],
        2..4 => ON_DEVICES[random.below(ON_DEVICES.len())],
        // Often the same rows.
        4..6 => MERGED[random.below(5)].1,
        _ => MERGED[random.below(MERGED.len())].1,
    };
    let sql = sql.replace("JOIN p ", &format!("JOIN {table} p "));
    let sql = sql.replace("FROM p ", &format!("FROM {table} p "));
    (sql.replace("'p'", &format!("'{table}'")), table)
}

fn is_lookup(sql: &str) -> bool {
    sql.contains("SELECT l, r, range_")
}

fn is_of_files(table: &str) -> bool {
    table.ends_with('f')
}

/// Whether files are read on the side of a range join that is streamed.
fn streams_files(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    match plan.name() {
        "RangeJoinExec" => {
            let text = displayable(children[0].as_ref()).indent(false).to_string();
            text.contains("file_groups")
        }
        _ => children.into_iter().any(streams_files),
    }
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

#[track_caller]
fn assert_same(found: &[String], expected: &[String]) {
    let only = |these: &[String], others: &[String]| -> Vec<String> {
        let only = these.iter().filter(|line| !others.contains(line));
        only.take(5).cloned().collect()
    };
    assert!(
        found == expected,
        "{} rows, expected {}\nfound: {:#?}\nexpected: {:#?}",
        found.len(),
        expected.len(),
        only(found, expected),
        only(expected, found)
    );
}

impl World {
    async fn new(random: &mut Random) -> Self {
        let partitions = [1, 3][random.below(2)];
        let [data, indexes] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let files = write_first_files(&data).await;
        let plain = session(&SharedIndexes::default(), partitions, None, &data).await;
        set(&plain, "rmq.keep_indexes", "false");
        let mut world = Self {
            partitions,
            data,
            indexes,
            shared: SharedIndexes::default(),
            sessions: vec![],
            plain,
            files,
            last_change: Instant::now(),
            next_id: 10_000,
            recent: query_of(random),
            running: None,
            met: BTreeMap::new(),
            history: History::default(),
        };
        for number in 0..SESSIONS {
            let session = world.new_session(number).await;
            world.sessions.push(session);
        }
        world
    }

    /// A session with the tables of the one that keeps nothing.
    async fn new_session(&self, number: usize) -> SessionContext {
        let own = SharedIndexes::default();
        let indexes = if number < 2 { &self.shared } else { &own };
        let ctx = session(indexes, self.partitions, Some(&self.plain), &self.data).await;
        set(&ctx, "rmq.index_directory", &self.index_directory());
        match number {
            3 => Fake::real().register(ctx, &[("rmq.engine", "cuda")]),
            _ => ctx,
        }
    }

    fn index_directory(&self) -> String {
        self.indexes.path().display().to_string()
    }

    fn note(&mut self, what: impl Into<String>) {
        self.history.0.push(what.into());
    }

    fn meet(&mut self, what: &'static str, times: usize) {
        *self.met.entry(what).or_default() += times;
    }

    /// The answer of the session that keeps nothing, to which the tables of this one are given.
    async fn expected(&self, ctx: &SessionContext, sql: &str) -> Vec<String> {
        for name in TABLES.iter().flatten() {
            let table = ctx.table_provider(*name).await.expect(name);
            put(&self.plain, name, table);
        }
        answer(&self.plain, sql).await.expect(sql).1
    }

    async fn check(&mut self, number: usize, (sql, table): &(String, &'static str)) {
        self.note(format!("session {number}: {sql}"));
        let ctx = self.sessions[number].clone();
        let expected = self.expected(&ctx, sql).await;
        // A running query may add to what is kept meanwhile.
        let told = match is_of_files(table) || self.running.is_some() {
            true => None,
            false => Some(explained(&ctx, "EXPLAIN", sql).await),
        };
        let (plan, found) = match answer(&ctx, sql).await {
            Err(error) if is_out_of_memory(&error) && is_lookup(sql) => return,
            answer => answer.expect(sql),
        };
        assert_same(&found, &expected);
        let kept = metric(&plan, "index_kept");
        if let Some(told) = told {
            let told = told.iter().filter(|origin| *origin == "kept").count();
            assert_eq!(told, kept, "what EXPLAIN tells");
        }
        if metric(&plan, "device_batches") > 0 {
            self.meet("kept on devices", kept);
        }
        if is_of_files(table) {
            self.meet("kept of files", kept + metric(&plan, "indexes_reused"));
        }
        for name in MET {
            let least = if name == "index_segments" { 2 } else { 1 };
            self.meet(name, usize::from(metric(&plan, name) >= least));
        }
    }

    async fn ask_again(&mut self, number: usize) {
        let recent = self.recent.clone();
        self.check(number, &recent).await;
    }

    /// Plans a query, and often begins it.
    async fn begin(&mut self, random: &mut Random) {
        let ctx = self.sessions[random.below(SESSIONS)].clone();
        let (mut sql, mut table) = query_of(random);
        while !is_of_files(table) && random.below(2) == 0 {
            (sql, table) = query_of(random);
        }
        if is_lookup(&sql) {
            // In many batches.
            sql += " CROSS JOIN range(0, 200)";
        }
        let reads_files = is_of_files(table);
        let expected = self.expected(&ctx, &sql).await;
        let plan = planned(&ctx, &sql).await.expect(&sql);
        // DataFusion does not tell that a file has changed which it streams.
        let begins = match random.below(3) {
            0 => !(reads_files && streams_files(&plan)),
            1 => !reads_files,
            _ => false,
        };
        self.note(format!("planned, {begins}: {sql}"));
        let (mut begun, mut read) = (None, vec![]);
        if begins {
            let stream = execute_stream(Arc::clone(&plan), ctx.task_ctx());
            let stream = begun.insert(stream.expect("a stream"));
            match stream.next().await {
                Some(Err(error)) if is_out_of_memory(&error) => return,
                batch => read.extend(batch.transpose().expect("rows")),
            }
        }
        self.running = Some(Running {
            ctx,
            sql,
            reads_files,
            expected,
            plan,
            begun,
            read,
        });
    }

    /// Reads a query to its end. Its answer is that of the tables as they were when it was planned.
    async fn finish(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        self.note("it ends");
        let (ctx, has_begun) = (&running.ctx, running.begun.is_some());
        let rest = async {
            let stream = match running.begun {
                Some(stream) => stream,
                None => execute_stream(running.plan, ctx.task_ctx())?,
            };
            stream.try_collect::<Vec<_>>().await
        };
        match rest.await {
            Ok(rest) => {
                running.read.extend(rest);
                let found = lines(&running.read);
                let mut expected = running.expected;
                if running.reads_files && !has_begun && found != expected {
                    expected = self.expected(ctx, &running.sql).await;
                }
                assert_same(&found, &expected);
                self.meet("read after a change", 1);
            }
            Err(error) if is_out_of_memory(&error) && is_lookup(&running.sql) => {}
            Err(error) => {
                let error = error.to_string();
                let is_clear = error.contains(".parquet") || error.contains("changed");
                // DataFusion reads the files of joins.
                let is_scan = !has_begun && !is_lookup(&running.sql);
                assert!(running.reads_files && (is_clear || is_scan), "{error}");
                self.meet("error of a changed file", usize::from(is_clear));
            }
        }
    }

    async fn operate(&mut self, random: &mut Random) {
        let reads_files = |running: &Running| running.reads_files;
        let is_over_files = self.running.as_ref().is_some_and(reads_files);
        let draw = random.below(100);
        match draw {
            _ if is_over_files && draw < 60 => self.change_files(random).await,
            0..22 => self.change_rows(random).await,
            22..26 => self.change_tables(random).await,
            26..29 => self.change_files(random).await,
            29..34 => self.change_options(random).await,
            34..37 => self.change_names(random).await,
            37..40 => self.begin_session(random).await,
            40..42 => self.damage(random).await,
            42..44 => self.ask_of_old_files(random).await,
            44..56 => {
                self.finish().await;
                return self.begin(random).await;
            }
            _ => {
                if random.below(2) == 0 {
                    self.recent = query_of(random);
                }
                let number = random.below(SESSIONS);
                for number in [number, [number, random.below(SESSIONS)][random.below(2)]] {
                    self.ask_again(number).await;
                }
                return;
            }
        }
        self.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_stale() {
    let mut met = BTreeMap::new();
    for mut random in runs("never stale", &[]) {
        let started = Instant::now();
        let mut world = World::new(&mut random).await;
        world.met = met;
        let is_met = |world: &World| {
            let mut all = MET.iter();
            all.all(|what| world.met.get(what).is_some_and(|times| *times > 0))
        };
        // The first run goes on until it has met everything.
        let most = if is_usual() { 1000 } else { 0 };
        let mut number = 0;
        while number < operations(120) || number < most && !is_met(&world) {
            world.note(format!("operation {number}"));
            world.operate(&mut random).await;
            number += 1;
            if number % 1000 == 0 {
                println!("{number} after {:?}: {:?}", started.elapsed(), world.met);
            }
        }
        println!("{number} after {:?}: {:?}", started.elapsed(), world.met);
        assert!(is_met(&world) || !is_usual(), "{:?}", world.met);
        met = std::mem::take(&mut world.met);
    }
}
