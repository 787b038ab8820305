//! What changes: rows, tables, files, options, names of indexes, sessions, and files of indexes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use datafusion::datasource::MemTable;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::SessionContext;
use rmq_testing::Random;
use tempfile::TempDir;

use crate::appended::{FUNCTIONS, query};
use crate::never_stale::{SESSIONS, World, answer, execute, is_of_files, put, query_of};
use crate::persisted::{files, written};
use crate::staleness::OLD;
use crate::support::{bigint, run, set};

/// The first id, the number of rows and the salt of rows. Those of another salt have other values, but take as many
/// bytes in a file.
pub type Rows = (usize, usize, usize);

/// After this time another change of a file is seen.
const SETTLED: Duration = Duration::from_millis(2100);

fn select((first, count, salt): Rows) -> String {
    format!(
        "SELECT value AS id, CASE WHEN value % 5 < 4 THEN concat('s', (value + {salt}) % 4) END AS s, \
         CASE WHEN value % 97 <> 5 THEN (value * 7919 + {salt} * 31) % 2003 END AS t, \
         (value * 7919 + {salt} * 31) % 2003 + value % 13 AS u, \
         CASE WHEN value % 14 <> 7 THEN (value * 31 + {salt} * 7) % 100 END AS v, \
         CASE value % 11 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN -0.0::DOUBLE WHEN 2 THEN 0.0::DOUBLE WHEN 3 THEN NULL \
         ELSE (value + {salt}) * 0.1 END AS f FROM range({first}, {})",
        first + count
    )
}

/// Makes a table in memory, of one partition if it is `p`.
pub async fn create(ctx: &SessionContext, name: &str, rows: Rows) {
    let frame = ctx.sql(&select(rows)).await.expect("a query");
    let schema = Arc::clone(frame.schema().inner());
    let count = if name == "p" { 1 } else { 3 };
    let mut partitions = vec![vec![]; count];
    for (i, batch) in frame.collect().await.expect("rows").into_iter().enumerate() {
        partitions[i % count].push(batch);
    }
    let table = MemTable::try_new(schema, partitions).expect("batches of one schema");
    put(ctx, name, Arc::new(table));
}

pub async fn external(ctx: &SessionContext, data: &TempDir) {
    let location = data.path().display();
    let f = format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{location}'");
    execute(ctx, &f).await;
}

pub async fn views(ctx: &SessionContext) {
    for table in ["p", "w", "f"] {
        let filters = format!("v_{table} AS SELECT * FROM {table} WHERE v % 4 <> 1");
        let orders = "WHERE u > 50 ORDER BY id, s, t, u, v, f";
        let orders = format!("o_{table} AS SELECT * FROM {table} {orders}");
        for view in [filters, orders] {
            execute(ctx, &format!("CREATE OR REPLACE VIEW {view}")).await;
        }
    }
}

pub async fn write_first_files(data: &TempDir) -> BTreeMap<usize, Rows> {
    let mut files = BTreeMap::new();
    for number in [100, 200, 300] {
        let rows = (number * 20, 2000, 0);
        write(&path(data, number), &parquet(rows).await, OLD);
        files.insert(number, rows);
    }
    files
}

fn path(data: &TempDir, number: usize) -> PathBuf {
    data.path().join(format!("{number:05}.parquet"))
}

/// A Parquet file.
async fn parquet(rows: Rows) -> Vec<u8> {
    let rows = run(&SessionContext::new(), &select(rows)).await;
    let rows = rows.expect("rows");
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(1000))
        .set_data_page_row_count_limit(200)
        .build();
    let mut bytes = vec![];
    let writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties));
    let mut writer = writer.expect("a writer");
    writer.write(&rows).expect("rows");
    writer.close().expect("a footer");
    bytes
}

/// Writes a new file, last changed `age` ago.
fn write(path: &Path, contents: &[u8], age: Duration) {
    // A reader of the old one keeps its open file.
    let _ = fs::remove_file(path);
    overwrite(path, contents, SystemTime::now() - age);
}

/// Writes the contents of a file, of the same length if there is one, in place.
fn overwrite(path: &Path, contents: &[u8], modified: SystemTime) {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(path);
    let mut file = file.expect("a file");
    file.write_all(contents).expect("a file");
    file.set_modified(modified).expect("a time");
}

/// A query over files, or over a table in memory.
fn query_over(files: bool, random: &mut Random) -> (String, &'static str) {
    loop {
        let query = query_of(random);
        if is_of_files(query.1) == files {
            return query;
        }
    }
}

impl World {
    pub async fn change_rows(&mut self, random: &mut Random) {
        let number = random.below(SESSIONS);
        let ctx = self.sessions[number].clone();
        let is_asked = random.below(4) > 0;
        if is_asked {
            if is_of_files(self.recent.1) {
                self.recent = query_over(false, random);
            }
            self.ask_again(number).await;
        }
        let is_p = self.recent.1.ends_with('p') || !is_asked && random.below(2) == 0;
        let table = if is_p { "p" } else { "w" };
        let count = [0, 1, 5, 40, 100, 2100][random.below(6)];
        let part = random.below(9);
        let sql = match random.below(12) {
            0..7 => {
                let new = (self.next_id, count, part);
                self.next_id += count;
                format!("INSERT INTO {table} {}", select(new))
            }
            7 => format!("INSERT INTO {table} SELECT * FROM {table} WHERE id % 50 = {part}"),
            8 => format!("UPDATE {table} SET v = v + 1 WHERE id % 9 = {part}"),
            9 => format!("UPDATE {table} SET t = t + 3, f = -f WHERE id % 9 = {part}"),
            10 => format!("DELETE FROM {table} WHERE id % 37 = {part}"),
            _ => [
                "UPDATE q SET b = b + 1 WHERE id % 9 = 3",
                "INSERT INTO q SELECT id + 1000, s, a + 1, b, v FROM q LIMIT 10",
                "DELETE FROM q WHERE id >= 1000",
            ][random.below(3)]
            .into(),
        };
        self.note(&sql);
        execute(&ctx, &sql).await;
        let count = bigint(&ctx, &format!("SELECT count(*) FROM {table}")).await;
        if count > Some(8000) {
            let most = format!("DELETE FROM {table} WHERE id % 3 > 0");
            execute(&ctx, &most).await;
        }
        if is_asked {
            self.ask_again(number).await;
        }
    }

    pub async fn change_tables(&mut self, random: &mut Random) {
        let number = random.below(SESSIONS);
        let ctx = self.sessions[number].clone();
        let table = ["p", "w"][random.below(2)];
        let new = (self.next_id, [0, 7, 1500][random.below(3)], random.below(9));
        self.next_id += 2000;
        let what = ["replaced", "dropped", "fork", "swapped", "views", "f"][random.below(6)];
        match what {
            "replaced" => {
                let sql = format!("CREATE OR REPLACE TABLE {table} AS {}", select(new));
                execute(&ctx, &sql).await;
            }
            "dropped" => {
                execute(&ctx, &format!("DROP TABLE {table}")).await;
                let sql = format!("SELECT range_min('{table}.v', 0, 9)");
                answer(&ctx, &sql).await.expect_err("it is gone");
                create(&ctx, table, new).await;
            }
            "fork" => {
                // Another table of the same arrays.
                let old = ctx.table_provider(table).await.expect(table);
                let schema = old.schema();
                let old = old.downcast_ref::<MemTable>().expect("in memory");
                let mut partitions = vec![];
                for partition in &old.batches {
                    partitions.push(partition.read().await.clone());
                }
                match random.below(3) {
                    0 => partitions[0].reverse(),
                    1 => drop(partitions[0].pop()),
                    _ => {}
                }
                let fork = MemTable::try_new(schema, partitions);
                put(&ctx, table, Arc::new(fork.expect("the same schema")));
            }
            "swapped" => {
                let [p, w] = [ctx.table_provider("p").await, ctx.table_provider("w").await];
                put(&ctx, "p", w.expect("w"));
                put(&ctx, "w", p.expect("p"));
            }
            "views" => views(&ctx).await,
            _ => {
                execute(&ctx, "DROP TABLE f").await;
                external(&ctx, &self.data).await;
            }
        }
        // Otherwise the sessions that share indexes have other tables of one name.
        let is_shared = random.below(2) == 0;
        self.note(format!("session {number}, {table}: {what}, {is_shared}"));
        for name in ["p", "w"].into_iter().filter(|_| is_shared) {
            for other in &self.sessions {
                put(other, name, ctx.table_provider(name).await.expect(name));
            }
        }
    }

    pub async fn change_files(&mut self, random: &mut Random) {
        let numbers: Vec<_> = self.files.keys().copied().collect();
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        let number = numbers[random.below(numbers.len())];
        let file = path(&self.data, number);
        let (id, count, _) = self.files[&number];
        let mut now = (id, count, random.below(99));
        let new = (self.next_id, [30, 400, 3000][random.below(3)], 0);
        self.next_id += 3000;
        let age = [OLD, OLD, Duration::ZERO][random.below(3)];
        let modified = fs::metadata(&file).and_then(|file| file.modified());
        let modified = modified.expect("a time");
        let what = [
            "last", "middle", "in place", "other", "twice", "shorter", "swapped", "less",
        ][random.below(8)];
        self.note(format!("files {numbers:?}: {number} {what}, {age:?} old"));
        match what {
            "last" | "middle" => {
                let number = match what {
                    "last" => last + 1 + random.below(9),
                    _ => first + random.below(last - first + 1),
                };
                write(&path(&self.data, number), &parquet(new).await, age);
                self.files.insert(number, new);
            }
            "in place" | "other" | "twice" => {
                let contents = parquet(now).await;
                let old = fs::metadata(&file).expect("a file");
                assert_eq!(contents.len() as u64, old.len());
                if what == "other" {
                    fs::remove_file(&file).expect("a file");
                }
                overwrite(&file, &contents, modified);
                if what == "twice" {
                    // Perhaps within one tick of the clock.
                    self.recent = query_over(true, random);
                    self.ask_again(random.below(SESSIONS)).await;
                    now.2 += 1;
                    overwrite(&file, &parquet(now).await, modified);
                }
                self.files.insert(number, now);
                self.meet("same size and time", 1);
            }
            "shorter" => {
                let shorter = (id, 30, now.2);
                fs::write(&file, parquet(shorter).await).expect("a file");
                self.files.insert(number, shorter);
            }
            "swapped" => {
                let aside = self.data.path().join("aside");
                for (from, to) in [(first, &aside), (last, &path(&self.data, first))] {
                    fs::rename(path(&self.data, from), to).expect("a file");
                }
                fs::rename(aside, path(&self.data, last)).expect("a file");
                let of = [self.files[&last], self.files[&first]];
                self.files.extend([(first, of[0]), (last, of[1])]);
            }
            _ => {}
        }
        if what == "less" && numbers.len() > 2 || numbers.len() > 5 {
            fs::remove_file(&file).expect("a file");
            self.files.remove(&number);
        }
        self.last_change = Instant::now();
    }

    /// Waits until the times of all files are old enough to be trusted.
    async fn settle(&mut self) {
        self.note("settled");
        let left = SETTLED.saturating_sub(self.last_change.elapsed());
        tokio::time::sleep(left).await;
    }

    pub async fn ask_of_old_files(&mut self, random: &mut Random) {
        self.settle().await;
        self.recent = query_over(true, random);
        for number in [0, 1, 2, 2, 3] {
            self.ask_again(number).await;
        }
        if random.below(2) == 0 {
            self.begin_session(random).await;
        }
    }

    pub async fn change_options(&mut self, random: &mut Random) {
        let number = random.below(SESSIONS);
        let ctx = self.sessions[number].clone();
        let directory = self.index_directory();
        let usual = [
            ("rmq.keep_indexes", "true"),
            ("rmq.index_directory", &directory),
            ("rmq.index_memory_limit", "8G"),
        ];
        let reset = || usual.map(|(name, value)| set(&ctx, name, value));
        reset();
        let bytes = async |of: &str| {
            let sql = format!(
                "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM rmq_indexes() WHERE {of}"
            );
            bigint(&ctx, &sql).await.expect("a sum")
        };
        let (named, before) = (bytes("name IS NOT NULL").await, bytes("name IS NULL").await);
        let draw = random.below(6);
        // Columns of files are larger.
        let limit = named + [200 << 10, 30 << 10][usize::from(draw > 2)];
        let limit = limit.to_string();
        let (name, value) = match draw {
            0 => ("rmq.keep_indexes", "false"),
            1 => ("rmq.index_directory", ""),
            _ => ("rmq.index_memory_limit", limit.as_str()),
        };
        self.note(format!("session {number}: {name} = {value}"));
        set(&ctx, name, value);
        for _ in 0..2 {
            let sql = query(random, &["t", "u", "v", "f"], &FUNCTIONS[..4]);
            let sql = sql.replace("'t.", "'f.");
            self.check(number, &(sql, "f")).await;
        }
        let is_evicted = draw > 2 && before > 30 << 10 && bytes("name IS NULL").await < before;
        self.meet("evicted", usize::from(is_evicted));
        if random.below(3) > 0 {
            reset();
            self.note("as before");
        }
    }

    pub async fn change_names(&mut self, random: &mut Random) {
        let number = random.below(SESSIONS);
        let ctx = self.sessions[number].clone();
        let table = ["p", "w", "f"][random.below(3)];
        let (name, columns) = [("st", "s, t"), ("su", "s, u"), ("v", "v")][random.below(3)];
        let drops = random.below(3) == 0;
        if !drops && table == "f" {
            // It would be waited for.
            self.settle().await;
        }
        let sql = match drops {
            true => format!("DROP TABLE rmq.{table}_{name}"),
            false => format!("CREATE INDEX {table}_{name} ON {table} ({columns})"),
        };
        // It may exist, or its table may come in no order.
        let outcome = run(&ctx, &sql).await;
        let error = outcome.as_ref().err();
        self.note(format!("session {number}: {sql}: {error:?}"));
        self.meet("named", usize::from(outcome.is_ok()));
    }

    pub async fn begin_session(&mut self, random: &mut Random) {
        let number = [1, 2, 2, 3][random.below(4)];
        self.note(format!("session {number} is new"));
        if random.below(2) == 0 {
            written(&self.sessions[number]).await;
        }
        self.sessions[number] = self.new_session(number).await;
        self.ask_again(number).await;
    }

    /// Deletes or damages a file of an index, which the next process may look for.
    pub async fn damage(&mut self, random: &mut Random) {
        let files = files(self.indexes.path());
        let Some(file) = files.get(random.below(files.len().max(1))) else {
            return;
        };
        // It may have got its name just now.
        let Ok(mut bytes) = fs::read(file) else {
            return;
        };
        self.note(format!("{} damaged", file.display()));
        let at = random.below(bytes.len().max(1));
        match random.below(3) {
            0 => bytes.truncate(at),
            1 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 4),
            _ => bytes.clear(),
        }
        if bytes.is_empty() {
            let _ = fs::remove_file(file);
        } else {
            fs::write(file, bytes).expect("a file");
        }
        self.sessions[2] = self.new_session(2).await;
        self.ask_again(2).await;
    }
}
