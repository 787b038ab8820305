//! Build sides in the files of `rmq.index_directory`: found by the next process while its table stays as it is, and
//! never trusted otherwise. A process is a session with a catalog of its own. Answers are compared with those of a
//! session that keeps nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_testing::{Random, runs};
use tempfile::TempDir;

use crate::kept::{QUERIES, joining, settle, tables, write};
use crate::range_join::{lines, metric};
use crate::reasons::{record_log, warnings};
use crate::support::{bigint, cpu_session, run, session_of_pool, set};

/// Joins with keys and values of other types than those of [`QUERIES`].
const MORE: [&str; 8] = [
    "SELECT q.id, min(p.f), max(p.f), count(p.f), first_value(p.x ORDER BY p.t) FROM q JOIN p ON p.s = q.s \
     AND p.g = q.v % 3 AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    "SELECT q.id, count(*), max(p.x) FROM q JOIN p ON p.f >= q.a / 10.0 AND p.f < q.b / 5.0 GROUP BY q.id",
    "SELECT q.id, count(*), min(p.d) FROM q JOIN p ON p.g = q.v % 3 AND p.x BETWEEN q.s AND concat(q.s, '7') GROUP BY q.id",
    "SELECT q.id, sum(p.d), avg(p.f) FROM q LEFT JOIN p ON p.d BETWEEN q.a AND q.b GROUP BY q.id",
    "SELECT q.id, p.* FROM q FULL JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT p.id, p.f FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b \
     ORDER BY p.g, p.t LIMIT 3) x",
    "SELECT q.id, arg_max(p.id, p.f), arg_min(p.x, p.v) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    "SELECT q.id, sum(abs(p.v)), max(upper(p.x)) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
];

/// Range functions over columns that fit in memory.
const OF_COLUMNS: &str =
    "SELECT q.id, range_min('p.v', q.a, q.b), range_argmax('p.f', q.a, q.b) FROM q";

/// A file that has changed less than this before it is read is not kept.
const TOO_NEW: Duration = Duration::from_secs(2);

/// Random rows of `p`: with ties, NULLs in keys and values, NaN and zeros of both signs.
fn random_rows(random: &mut Random, first: usize, count: usize) -> String {
    let mut prime = || [31, 101, 7919, 104_729][random.below(4)];
    let (a, b, c) = (prime(), prime(), prime());
    format!(
        "SELECT value AS id, nullif(concat('s', value * {a} % 7), 's4') AS s, nullif(value * {b} % 1009, 77) AS t, \
         value * {b} % 1009 + value % 13 AS u, nullif(value * {c} % 100, 7) AS v, value % 3 AS g, \
         CASE value * {a} % 11 WHEN 0 THEN 'NaN'::double WHEN 1 THEN -0.0 WHEN 2 THEN 0.0 WHEN 3 THEN NULL \
         ELSE (value * {c} % 1000) / 8.0 END AS f, nullif(concat('s', value * {c} % 50), 's9') AS x, \
         arrow_cast(value * {c} % 1000, 'Decimal128(12, 2)') AS d FROM range({first}, {})",
        first + count
    )
}

/// A table `p` of Parquet files, a table `q` in memory, and a directory for indexes.
struct World {
    memory: SessionContext,
    data: TempDir,
    indexes: TempDir,
}

impl World {
    async fn new() -> Self {
        record_log();
        Self {
            memory: tables().await,
            data: tempfile::tempdir().expect("a folder"),
            indexes: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Three files that are old enough to be kept.
    async fn with_files(random: &mut Random) -> Self {
        let world = Self::new().await;
        for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
            let count = 200 + random.below(100);
            world
                .write(name, &random_rows(random, i * 300, count))
                .await;
        }
        settle().await;
        world
    }

    async fn write(&self, name: &str, rows: &str) {
        write(
            &self.memory,
            &self.data.path().join(format!("{name}.parquet")),
            rows,
        )
        .await;
    }

    /// A session over both tables.
    async fn session(&self) -> SessionContext {
        self.over_tables(cpu_session()).await
    }

    async fn over_tables(&self, ctx: SessionContext) -> SessionContext {
        let ctx = joining(ctx);
        let q = self.memory.table_provider("q").await.expect("q");
        ctx.register_table("q", q).expect("q");
        let no_cache = "SET datafusion.runtime.list_files_cache_limit = '0K'";
        let p = self.data.path().display();
        let p = format!("CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{p}'");
        for sql in [no_cache, &p] {
            run(&ctx, sql).await.expect(sql);
        }
        ctx
    }

    /// A session that keeps nothing.
    async fn plain(&self) -> SessionContext {
        let ctx = self.session().await;
        set(&ctx, "rmq.keep_indexes", "false");
        ctx
    }

    /// A new process that writes and finds indexes.
    async fn process(&self) -> SessionContext {
        self.process_in(self.indexes.path()).await
    }

    async fn process_in(&self, directory: &Path) -> SessionContext {
        let ctx = self.session().await;
        set(
            &ctx,
            "rmq.index_directory",
            &directory.display().to_string(),
        );
        ctx
    }

    fn files(&self) -> Vec<PathBuf> {
        files(self.indexes.path())
    }
}

/// The files of a directory.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

struct Found {
    rows: Vec<String>,
    loaded: usize,
    kept: usize,
}

async fn answer(ctx: &SessionContext, sql: &str) -> Found {
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    Found {
        rows: lines(&batches.expect(sql)),
        loaded: metric(&plan, "index_loaded"),
        kept: metric(&plan, "index_kept"),
    }
}

/// Waits until all that a session has to write is written.
pub async fn written(ctx: &SessionContext) {
    let writing = "SELECT count(*) FROM rmq_indexes() WHERE disk = 'writing'";
    while bigint(ctx, writing).await != Some(0) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The states of what a session keeps, without repetition.
pub async fn states(ctx: &SessionContext) -> Vec<String> {
    written(ctx).await;
    let sql = "SELECT DISTINCT disk FROM rmq_indexes() WHERE disk IS NOT NULL";
    lines(&[run(ctx, sql).await.expect(sql)])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_finds_what_was_built() {
    for mut random in runs("persisted build sides", &[]) {
        let world = World::with_files(&mut random).await;
        let plain = world.plain().await;
        let mut count = 0;
        for sql in QUERIES.into_iter().chain(MORE) {
            let expected = answer(&plain, sql).await;
            assert_eq!((expected.loaded, expected.kept), (0, 0), "{sql}");
            let directory = tempfile::tempdir().expect("a folder");
            let first = world.process_in(directory.path()).await;
            let found = answer(&first, sql).await;
            assert!(found.rows == expected.rows, "{sql}");
            assert_eq!(found.loaded, 0, "{sql}");
            let states_after = states(&first).await;
            // Of partitioned rows and of unions in no order nothing is kept that could be extended.
            let is_written = !files(directory.path()).is_empty();
            assert_eq!(
                is_written,
                states_after == ["written"],
                "{sql}: {states_after:?}"
            );
            for _ in 0..2 {
                let next = world.process_in(directory.path()).await;
                let found = answer(&next, sql).await;
                assert!(found.rows == expected.rows, "{sql}");
                assert_eq!(found.loaded > 0, is_written, "{sql}");
                let again = answer(&next, sql).await;
                assert!(again.rows == expected.rows, "{sql}");
                assert_eq!(again.loaded, 0, "{sql}");
                assert!(again.kept > 0 || !is_written, "{sql}");
            }
            count += usize::from(is_written);
        }
        println!("{count} written");
        // Not where `q` is searched, nor below UNION ALL.
        assert!(count >= QUERIES.len() + MORE.len() - 4, "{count}");
    }
}

/// Values that one process needs are added to the files that another has written, and found by a third.
#[tokio::test(flavor = "multi_thread")]
async fn processes_add_values_to_the_same_rows() {
    for mut random in runs("values of persisted build sides", &[]) {
        let world = World::with_files(&mut random).await;
        let plain = world.plain().await;
        let by_time = |values: &str| {
            format!(
                "SELECT q.id, {values} FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id"
            )
        };
        let queries = [
            by_time("count(*)"),
            by_time("sum(p.v)"),
            by_time("min(p.v), max(p.f)"),
            by_time("first_value(p.x ORDER BY p.t), median(p.d)"),
            QUERIES[4].to_string(),
            QUERIES[6].to_string(),
            QUERIES[11].to_string(),
            QUERIES[12].to_string(),
            MORE[4].to_string(),
            MORE[6].to_string(),
            MORE[7].to_string(),
        ];
        let mut loaded = 0;
        for _ in 0..25 {
            let ctx = world.process().await;
            for _ in 0..1 + random.below(3) {
                let sql = &queries[random.below(queries.len())];
                let expected = answer(&plain, sql).await;
                let found = answer(&ctx, sql).await;
                assert!(found.rows == expected.rows, "{sql}");
                loaded += found.loaded;
                if random.below(3) == 0 {
                    written(&ctx).await;
                }
            }
            written(&ctx).await;
            if random.below(6) == 0 {
                let files = world.files();
                fs::remove_file(&files[random.below(files.len())]).expect("a file");
            }
        }
        assert!(loaded > 10, "{loaded}");
        // Once all values have files, the next process reads no row of the table.
        for sql in &queries[..3] {
            let ctx = world.process().await;
            answer(&ctx, sql).await;
            written(&ctx).await;
        }
        for sql in &queries[..3] {
            let ctx = world.process().await;
            let plan = ctx.sql(sql).await.expect(sql);
            let plan = plan.create_physical_plan().await.expect(sql);
            collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
            assert_eq!(metric(&plan, "index_loaded"), 1, "{sql}");
            assert_eq!(rows_scanned(&plan), 0, "{sql}");
        }
    }
}

/// The rows that scans of files have returned.
fn rows_scanned(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let scan = plan.downcast_ref::<DataSourceExec>();
    let of_files = scan.filter(|scan| !scan.data_source().is::<MemorySourceConfig>());
    let own = of_files.and_then(|scan| scan.metrics()?.output_rows());
    let children = plan.children().into_iter().map(rows_scanned);
    own.unwrap_or(0) + children.sum::<usize>()
}

/// Files that are written anew, are added and go, queries and new processes in random order.
#[tokio::test(flavor = "multi_thread")]
async fn changed_files_have_new_answers() {
    for mut random in runs("persisted build sides of changed files", &[]) {
        let world = World::with_files(&mut random).await;
        let plain = world.plain().await;
        let mut processes = vec![world.process().await];
        let queries = [
            QUERIES[0],
            QUERIES[3],
            QUERIES[6],
            QUERIES[11],
            MORE[0],
            MORE[4],
        ];
        let (mut next_id, mut loaded) = (2_000, 0);
        for _ in 0..60 {
            match random.below(12) {
                0 | 1 => {
                    let name = ["a", "b", "c", "d"][random.below(4)];
                    // Often of the same size and time as the file whose place it takes.
                    let first = [0, 300, 600, next_id][random.below(4)];
                    world
                        .write(name, &random_rows(&mut random, first, 250))
                        .await;
                    next_id += 300;
                }
                2 => {
                    let _ = fs::remove_file(world.data.path().join("d.parquet"));
                }
                3 => settle().await,
                4 | 5 => {
                    if random.below(2) == 0 {
                        processes.clear();
                    }
                    processes.push(world.process().await);
                }
                _ => {
                    let sql = queries[random.below(queries.len())];
                    let expected = answer(&plain, sql).await;
                    for ctx in &processes {
                        let found = answer(ctx, sql).await;
                        assert!(found.rows == expected.rows, "{sql}");
                        loaded += found.loaded;
                        if random.below(2) == 0 {
                            written(ctx).await;
                        }
                    }
                }
            }
        }
        println!("{loaded} loaded");
    }
}

/// A file that is replaced by one of the same size and time is another version; one that has just been written is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_file_is_another_version() {
    let world = World::new().await;
    let rows = |v: usize| format!("SELECT 's1' AS s, value AS t, {v} AS v FROM range(0, 100)");
    let sql = "SELECT q.id, max(p.v) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id";
    let started = Instant::now();
    world.write("a", &rows(10)).await;
    let ctx = world.process().await;
    let before = answer(&ctx, sql).await.rows;
    let is_kept = !states(&ctx).await.is_empty();
    assert!(!is_kept || started.elapsed() > TOO_NEW, "it is too new");
    settle().await;
    answer(&ctx, sql).await;
    assert_eq!(states(&ctx).await, ["written"]);
    let names = world.files();
    let path = world.data.path().join("a.parquet");
    let old = fs::metadata(&path).expect("a file");
    let started = Instant::now();
    world.write("a", &rows(20)).await;
    let file = fs::File::options().write(true).open(&path).expect("a file");
    file.set_modified(old.modified().expect("a time"))
        .expect("a time");
    drop(file);
    let new = fs::metadata(&path).expect("a file");
    assert_eq!(
        (new.len(), new.modified().unwrap()),
        (old.len(), old.modified().unwrap())
    );
    let mut was_kept = false;
    for is_settled in [false, true] {
        let next = world.process().await;
        let found = answer(&next, sql).await;
        assert!(found.loaded == 0 || was_kept);
        assert!(found.rows != before);
        assert_eq!(found.rows, answer(&world.plain().await, sql).await.rows);
        let is_kept = !states(&next).await.is_empty();
        assert!(is_kept || !is_settled);
        assert!(!is_kept || started.elapsed() > TOO_NEW);
        was_kept = is_kept;
        settle().await;
    }
    // The new version has taken the place of the old one.
    assert_eq!(world.files(), names);
    let next = world.process().await;
    let found = answer(&next, sql).await;
    assert_eq!(found.loaded, 1);
    assert!(found.rows != before);
}

/// Bits of any file flipped, files cut short, swapped, emptied and replaced by others.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_ignored() {
    for mut random in runs("damaged index files", &[]) {
        let world = World::with_files(&mut random).await;
        let plain = world.plain().await;
        for sql in [QUERIES[0], MORE[4]] {
            let expected = answer(&plain, sql).await.rows;
            for file in world.files() {
                fs::remove_file(file).expect("a file");
            }
            let first = world.process().await;
            answer(&first, sql).await;
            assert_eq!(states(&first).await, ["written"]);
            let whole: Vec<_> = world
                .files()
                .into_iter()
                .map(|f| (f.clone(), fs::read(f).expect("a file")))
                .collect();
            assert!(whole.len() > 1);
            for round in 0..40 {
                let (file, bytes) = &whole[random.below(whole.len())];
                let mut damaged = bytes.clone();
                match round % 5 {
                    0 | 1 => {
                        let at = random.below(bytes.len());
                        damaged[at] ^= 1 << random.below(8);
                    }
                    2 => damaged.truncate(random.below(bytes.len())),
                    3 => damaged = whole[random.below(whole.len())].1.clone(),
                    _ => damaged = vec![b'x'; random.below(bytes.len())],
                }
                let is_other = damaged != *bytes;
                let name = file.display().to_string();
                let before = warnings(&name).len();
                fs::write(file, &damaged).expect("a file");
                let next = world.process().await;
                let found = answer(&next, sql).await;
                assert!(found.rows == expected, "{sql}: {name}");
                if round % 5 != 3 {
                    assert_eq!(warnings(&name).len() > before, is_other, "{sql}: {name}");
                }
                // It has been written anew.
                written(&next).await;
                assert!(fs::read(file).expect("a file") == *bytes, "{sql}: {name}");
            }
        }
        // Other files stay as they are.
        let notes = world.indexes.path().join("notes.txt");
        fs::write(&notes, "mine").expect("a file");
        answer(&world.process().await, QUERIES[0]).await;
        assert_eq!(fs::read_to_string(notes).expect("a file"), "mine");
    }
}

/// Directories that can't be made or written, below this one, and whether writing fails for this user.
pub fn unwritable(below: &Path) -> [(PathBuf, bool); 4] {
    let file = below.join("file");
    fs::write(&file, "no directory").expect("a file");
    let read_only = below.join("read-only");
    fs::create_dir(&read_only).expect("a directory");
    let mut permissions = fs::metadata(&read_only).expect("a directory").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&read_only, permissions).expect("permissions");
    // They do not stop root.
    let stops = fs::write(read_only.join("file"), "").is_err();
    [
        (file.clone(), true),
        (file.join("below"), true),
        (read_only, stops),
        ("/proc/rmq".into(), true),
    ]
}

/// A directory that can't be made or written costs a warning, not the query.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_written_is_a_warning() {
    let world = World::with_files(&mut Random::from_seed(1)).await;
    let expected = answer(&world.plain().await, QUERIES[0]).await.rows;
    for (directory, fails) in unwritable(world.indexes.path()) {
        let ctx = world.process_in(&directory).await;
        for _ in 0..2 {
            assert!(answer(&ctx, QUERIES[0]).await.rows == expected);
        }
        if fails {
            assert_eq!(states(&ctx).await, ["failed"], "{directory:?}");
            let text = format!("rmq.index_directory = '{}'", directory.display());
            assert!(!warnings(&text).is_empty(), "{text}");
        }
    }
}

/// In a process of its own that a test starts: queries, each in a session of its own, until the process is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_a_test_starts() {
    let Ok(text) = std::env::var("RMQ_TEST_PROCESS") else {
        return;
    };
    let [data, indexes, rounds, sql] = text
        .split('|')
        .collect::<Vec<_>>()
        .try_into()
        .expect("four parts");
    let memory = tables().await;
    for round in 0..rounds.parse().expect("a number") {
        let ctx = joining(cpu_session());
        let q = memory.table_provider("q").await.expect("q");
        ctx.register_table("q", q).expect("q");
        let p = format!("CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{data}'");
        run(&ctx, &p).await.expect("p");
        // No two rounds find each other's files.
        set(
            &ctx,
            "datafusion.execution.batch_size",
            &(1000 + round % 50).to_string(),
        );
        set(&ctx, "rmq.index_directory", indexes);
        let rows = answer(&ctx, sql).await.rows;
        written(&ctx).await;
        println!("{} rows, {:?}", rows.len(), states(&ctx).await);
    }
}

/// Starts the test above with a directory of tables, one of indexes, a number of rounds, and a query.
fn start(data: &Path, indexes: &Path, (rounds, sql): (usize, &str), shell: Option<&str>) -> Child {
    let test = std::env::current_exe().expect("this program");
    let mut command = match shell {
        Some(before) => {
            let mut command = Command::new("sh");
            command
                .args(["-c", &format!("{before}; exec \"$0\" \"$@\"")])
                .arg(test);
            command
        }
        None => Command::new(test),
    };
    let text = format!("{}|{}|{rounds}|{sql}", data.display(), indexes.display());
    command
        .args([
            "persisted::a_process_that_a_test_starts",
            "--exact",
            "--nocapture",
        ])
        .env("RMQ_TEST_PROCESS", text)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().expect("a process")
}

/// Killed at any time, a process leaves nothing that gives another answer.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_process_may_be_killed_while_it_writes() {
    for mut random in runs("killed processes", &[]) {
        let world = World::new().await;
        world.write("a", &random_rows(&mut random, 0, 20_000)).await;
        settle().await;
        let plain = world.plain().await;
        let sql = [MORE[4], OF_COLUMNS][random.below(2)];
        let expected = answer(&plain, sql).await.rows;
        for _ in 0..3 {
            let mut child = start(world.data.path(), world.indexes.path(), (1_000, sql), None);
            let started = Instant::now();
            while world.files().is_empty() && started.elapsed() < Duration::from_secs(60) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(random.below(1_000) as u64)).await;
            child.kill().expect("a process");
            child.wait().expect("a process");
        }
        assert!(!world.files().is_empty());
        println!("{} files", world.files().len());
        let mut loaded = 0;
        for round in 0..50 {
            let ctx = world.process().await;
            set(
                &ctx,
                "datafusion.execution.batch_size",
                &(1000 + round).to_string(),
            );
            let found = answer(&ctx, sql).await;
            assert!(found.rows == expected);
            loaded += found.loaded;
        }
        println!("{loaded} loaded");
    }
}

/// A disk that takes no more than some blocks of a file stands for a full one.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_a_warning() {
    let world = World::new().await;
    world
        .write("a", &random_rows(&mut Random::from_seed(1), 0, 3_000))
        .await;
    settle().await;
    let plain = world.plain().await;
    let all = [MORE[4], OF_COLUMNS].into_iter().flat_map(|sql| {
        let full = "trap '' XFSZ; ulimit -f 4";
        [(sql, full, "failed"), (sql, ":", "written")]
    });
    for (sql, limit, state) in all {
        let expected = answer(&plain, sql).await.rows.len();
        let child = start(
            world.data.path(),
            world.indexes.path(),
            (1, sql),
            Some(limit),
        );
        let output = child.wait_with_output().expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains(&format!("{expected} rows, [\"{state}\"]")),
            "{limit}: {text}"
        );
        let files = world.files();
        assert!(
            files
                .iter()
                .all(|file| file.extension().is_some_and(|e| e == "rmq")),
            "{files:?}"
        );
    }
}

/// Several sessions write the same files at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_directory() {
    let world = World::with_files(&mut Random::from_seed(1)).await;
    let plain = world.plain().await;
    let mut expected = vec![];
    for sql in [QUERIES[0], QUERIES[6], MORE[4]] {
        expected.push((sql, answer(&plain, sql).await.rows));
    }
    let expected = Arc::new(expected);
    let mut tasks = vec![];
    for _ in 0..4 {
        let (first, second) = (world.process().await, world.process().await);
        let expected = Arc::clone(&expected);
        tasks.push(tokio::spawn(async move {
            for ctx in [first, second] {
                for (sql, rows) in expected.iter() {
                    assert!(answer(&ctx, sql).await.rows == *rows, "{sql}");
                }
                written(&ctx).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("rows");
    }
    let last = world.process().await;
    assert_eq!(answer(&last, QUERIES[0]).await.loaded, 1);
}

/// Other rows, keys and options have other files, and a session without the option has none.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_same_is_not_found() {
    let world = World::with_files(&mut Random::from_seed(1)).await;
    let plain = world.plain().await;
    let count = |from: &str, on: &str| {
        format!(
            "SELECT q.id, count(*), min(p.v) FROM q JOIN {from} p ON {on} AND p.t BETWEEN q.a AND q.b GROUP BY q.id"
        )
    };
    let by_name = "p.s = q.s";
    let first = world.process().await;
    answer(&first, &count("p", by_name)).await;
    // One file for the rows, and one for the value.
    assert_eq!(states(&first).await, ["written"]);
    assert_eq!(world.files().len(), 2);
    for (sql, is_found) in [
        (count("p", by_name), true),
        (count("(SELECT t, v + 1 AS v, s FROM p)", by_name), true),
        (count("p", "p.s = q.s AND p.g = q.v"), false),
        (count("p", "p.g = q.v"), false),
        (count("(SELECT * FROM p WHERE v > 3)", by_name), false),
        (count("(SELECT * FROM p WHERE s <> 's1')", by_name), false),
        (count("(SELECT s, v, u AS t FROM p)", by_name), false),
        (count("(SELECT * FROM p WHERE abs(v) > 3)", by_name), false),
        (
            count("(SELECT * FROM p WHERE x <> 'a\"), field')", by_name),
            false,
        ),
    ] {
        let ctx = world.process().await;
        let expected = answer(&plain, &sql).await;
        let found = answer(&ctx, &sql).await;
        assert!(found.rows == expected.rows, "{sql}");
        assert_eq!(found.loaded > 0, is_found, "{sql}");
        written(&ctx).await;
    }
    for (option, value) in [
        ("datafusion.execution.batch_size", "100"),
        ("datafusion.execution.target_partitions", "3"),
    ] {
        let ctx = world.process().await;
        set(&ctx, option, value);
        let expected = answer(&plain, &count("p", by_name)).await;
        assert!(
            answer(&ctx, &count("p", by_name)).await.rows == expected.rows,
            "{option}"
        );
    }
    let without = world.session().await;
    let found = answer(&without, &count("p", by_name)).await;
    assert_eq!(found.loaded, 0);
    assert!(states(&without).await.is_empty());
    // Tables in memory have no files.
    let memory = joining(tables().await);
    set(
        &memory,
        "rmq.index_directory",
        &world.indexes.path().display().to_string(),
    );
    let before = world.files().len();
    answer(&memory, QUERIES[0]).await;
    assert!(states(&memory).await.is_empty());
    assert_eq!(world.files().len(), before);
    // A session whose memory has a limit reads them: they give way.
    let pool = Arc::new(GreedyMemoryPool::new(1 << 26));
    let limited = world
        .over_tables(session_of_pool(SessionConfig::new(), pool))
        .await;
    set(&limited, "rmq.engine", "cpu");
    set(
        &limited,
        "rmq.index_directory",
        &world.indexes.path().display().to_string(),
    );
    let found = answer(&limited, &count("p", by_name)).await;
    assert_eq!(found.loaded, 1);
}

/// The values of partition columns are dictionaries, and those of other files are others.
#[tokio::test(flavor = "multi_thread")]
async fn partition_columns_are_keys_and_values() {
    let world = World::new().await;
    for (name, first) in [("s1", 0), ("s2", 300), ("s3", 600)] {
        let folder = world.data.path().join(format!("s={name}"));
        fs::create_dir(&folder).expect("a folder");
        let rows = format!(
            "SELECT value AS id, value * 7919 % 1009 AS t, value % 10 AS v FROM range({first}, {})",
            first + 300
        );
        write(&world.memory, &folder.join("a.parquet"), &rows).await;
    }
    settle().await;
    let session = async |directory: Option<&Path>| {
        let ctx = joining(cpu_session());
        let q = world.memory.table_provider("q").await.expect("q");
        ctx.register_table("q", q).expect("q");
        let p = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET PARTITIONED BY (s) LOCATION '{}'",
            world.data.path().display()
        );
        run(&ctx, &p).await.expect("p");
        match directory {
            Some(directory) => set(
                &ctx,
                "rmq.index_directory",
                &directory.display().to_string(),
            ),
            None => set(&ctx, "rmq.keep_indexes", "false"),
        }
        ctx
    };
    let plain = session(None).await;
    for sql in [
        "SELECT q.id, count(*), min(p.v), max(p.s) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
        "SELECT q.id, p.id, p.s FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
        "SELECT q.id, p.id, p.s FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b WHERE p.s <> 's2'",
        "SELECT q.id, count(*), min(p.t) FROM q JOIN p ON p.s BETWEEN q.s AND concat(q.s, 'x') AND p.v = q.v GROUP BY q.id",
    ] {
        let expected = answer(&plain, sql).await.rows;
        for round in 0..3 {
            let ctx = session(Some(world.indexes.path())).await;
            let found = answer(&ctx, sql).await;
            assert!(found.rows == expected, "{sql}");
            // The first two queries search the same rows.
            assert!(found.loaded > 0 || round == 0, "{sql}");
            assert_eq!(states(&ctx).await.len(), 1, "{sql}");
        }
    }
}

/// Tables without rows, with NULL keys alone, and of one row.
#[tokio::test(flavor = "multi_thread")]
async fn small_tables_are_found_too() {
    for rows in [
        "SELECT value AS id, 's1' AS s, value AS t, value AS u, value AS v FROM range(0, 0)",
        "SELECT value AS id, 's1' AS s, CAST(NULL AS BIGINT) AS t, value AS u, value AS v FROM range(0, 20)",
        "SELECT value AS id, CAST(NULL AS VARCHAR) AS s, value AS t, value AS u, value AS v FROM range(0, 20)",
        "SELECT value AS id, 's1' AS s, value AS t, value AS u, value AS v FROM range(5, 6)",
        "SELECT value AS id, 's1' AS s, 100 AS t, value AS u, CAST(NULL AS BIGINT) AS v FROM range(0, 40)",
    ] {
        let world = World::new().await;
        world.write("a", rows).await;
        settle().await;
        let plain = world.plain().await;
        for sql in [0, 1, 3, 4, 6, 8, 11, 12, 13].map(|i| QUERIES[i]) {
            let expected = answer(&plain, sql).await.rows;
            for _ in 0..3 {
                let ctx = world.process().await;
                assert!(answer(&ctx, sql).await.rows == expected, "{rows}: {sql}");
                written(&ctx).await;
            }
        }
    }
}

/// CREATE INDEX in the next process reads what an earlier one has sorted.
#[tokio::test(flavor = "multi_thread")]
async fn named_indexes_are_found() {
    let world = World::with_files(&mut Random::from_seed(1)).await;
    let plain = world.plain().await;
    for state in ["written", "loaded"] {
        let ctx = world.process().await;
        run(&ctx, "CREATE INDEX by_time ON p USING rmq (s, t)")
            .await
            .expect("an index");
        assert_eq!(states(&ctx).await, [state]);
        let named = "SELECT name, disk FROM rmq_indexes() WHERE name IS NOT NULL";
        let named = lines(&[run(&ctx, named).await.expect("a list")]);
        assert_eq!(named, [format!("by_time | {state}")]);
        for sql in [QUERIES[0], QUERIES[4], QUERIES[11]] {
            let found = answer(&ctx, sql).await;
            assert!(found.rows == answer(&plain, sql).await.rows, "{sql}");
            assert_eq!((found.loaded, found.kept), (0, 1), "{sql}");
        }
        written(&ctx).await;
    }
}

/// What is too large to be kept in memory is read by each query.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_above_the_memory_limit_is_found_each_time() {
    let world = World::with_files(&mut Random::from_seed(1)).await;
    let expected = answer(&world.plain().await, QUERIES[0]).await.rows;
    let first = world.process().await;
    answer(&first, QUERIES[0]).await;
    written(&first).await;
    let ctx = world.process().await;
    set(&ctx, "rmq.index_memory_limit", "1K");
    for _ in 0..3 {
        let found = answer(&ctx, QUERIES[0]).await;
        assert!(found.rows == expected);
        assert_eq!((found.loaded, found.kept), (1, 0));
    }
}
