//! Compares plain SQL that becomes a range join with DataFusion without the extension: generated schemas, types, NULLs,
//! duplicates, empty sides, groups, conditions and aggregates.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Decimal256Array, Float64Array, Int32Array, Int64Array};
use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit, i256};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::properties::{array, types};
use crate::support::{
    draw_join_mode, register, run, session, session_of_pool, set, with_extension,
};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of each test, unless `RMQ_CASES` overrides it.
const CASES: usize = 240;

/// Seeds of cases that once failed.
const FAILED: [u64; 2] = [10493136852592842791, 17573689900168694558];

/// Queries over the same pair of tables.
const QUERIES: usize = 16;

/// Numbers of partitions and of threads.
pub const PARALLELISM: [usize; 4] = [1, 2, 3, 16];

/// Two sessions over the same two tables: one with the extension, one without.
pub struct Tables {
    pub with: SessionContext,
    pub without: SessionContext,
    key_type: DataType,
    equalities: usize,
}

impl Tables {
    /// Two tables of a few rows each.
    pub fn new(random: &mut Random) -> Self {
        let rows = |random: &mut Random| match random.below(8) {
            0 => 0,
            1 => 1,
            _ => random.below(40),
        };
        let (build_rows, probe_rows) = (rows(random), rows(random));
        let batch_size = [3, 16, 8192][random.below(3)];
        Self::sized(random, (build_rows, probe_rows), batch_size)
    }

    /// Two tables with these numbers of rows, the build side first.
    pub fn sized(
        random: &mut Random,
        (build_rows, probe_rows): (usize, usize),
        batch_size: usize,
    ) -> Self {
        let mut pick_type = || loop {
            let all = types();
            let data_type = all[random.below(all.len())].clone();
            if data_type != DataType::Null {
                return data_type;
            }
        };
        let value_type = match pick_type() {
            // DataFusion's grouped MIN of floats has no total order: zeros and NaNs have tests of their own.
            DataType::Dictionary(_, value) if value.is_floating() => DataType::Float64,
            other => other,
        };
        let key_type = match pick_type() {
            // The most common types are generated more often.
            DataType::Binary => DataType::Int64,
            DataType::LargeBinary => DataType::Timestamp(TimeUnit::Nanosecond, None),
            other => other,
        };
        let equal_types = [pick_type(), pick_type()];
        let equalities = random.below(3);
        let few = random.below(4) > 0;
        let nulls = random.below(3);
        let bits = |random: &mut Random, n: usize, below: u64| -> Vec<Option<u64>> {
            let bit = |random: &mut Random| {
                let bits = random.next();
                let bits = if few { (bits % below) << 8 | 5 } else { bits };
                (random.below(10) >= nulls).then_some(bits)
            };
            (0..n).map(|_| bit(random)).collect()
        };
        let column = |random: &mut Random, t: &DataType, n: usize, below: u64| {
            array(t, &bits(random, n, below), few)
        };
        let values = |random: &mut Random, t: &DataType, n: usize| {
            if !t.is_floating() {
                return column(random, t, n, 5);
            }
            let plain = |b: Option<u64>| b.map(|b| (b % 5) << 8 | 5);
            let bits: Vec<_> = bits(random, n, 5).into_iter().map(plain).collect();
            array(t, &bits, true)
        };
        let small = |random: &mut Random, n: usize| -> Vec<Option<i64>> {
            let value =
                |random: &mut Random| (random.below(8) > 0).then(|| random.below(9) as i64 - 4);
            (0..n).map(|_| value(random)).collect()
        };
        let key = column(random, &key_type, build_rows, 7);
        let value = values(random, &value_type, build_rows);
        let ints = small(random, build_rows);
        let digits = small(random, build_rows);
        let decimals = decimals(random, &digits);
        let units = [
            TimeUnit::Second,
            TimeUnit::Microsecond,
            TimeUnit::Nanosecond,
        ];
        // Sums that don't overflow: there DataFusion's AVG of durations panics in a debug build.
        let durations: Int64Array = small(random, build_rows)
            .into_iter()
            .map(|v| v.map(|v| (v << 40) + 7))
            .collect();
        let duration = DataType::Duration(units[random.below(3)]);
        let durations = cast(&durations, &duration).expect("any number is a duration");
        let units = [
            IntervalUnit::YearMonth,
            IntervalUnit::DayTime,
            IntervalUnit::MonthDayNano,
        ];
        let interval = DataType::Interval(units[random.below(3)]);
        let floats: Float64Array = small(random, build_rows)
            .into_iter()
            .map(|v| v.map(|v| if v == 0 { 0.5 } else { v as f64 / 8.0 }))
            .collect();
        let texts: StringArray = small(random, build_rows)
            .into_iter()
            .map(|v| v.map(|v| format!("text {v}")))
            .collect();
        let build: Vec<(&str, ArrayRef)> = vec![
            (
                "id",
                Arc::new((0..build_rows as i64).collect::<Int64Array>()),
            ),
            ("e0", column(random, &equal_types[0], build_rows, 3)),
            ("e1", column(random, &equal_types[1], build_rows, 2)),
            ("k", Arc::clone(&key)),
            ("same_k", key),
            ("v", Arc::clone(&value)),
            ("same_v", value),
            ("n", Arc::new(Int64Array::from(ints))),
            ("d", decimals),
            ("u", durations),
            ("i", column(random, &interval, build_rows, 9)),
            ("f", Arc::new(floats)),
            ("s", Arc::new(texts)),
        ];
        let groups: Int32Array = small(random, probe_rows)
            .into_iter()
            .map(|v| v.map(|v| v as i32))
            .collect();
        let probe: Vec<(&str, ArrayRef)> = vec![
            (
                "id",
                Arc::new((0..probe_rows as i64).collect::<Int64Array>()),
            ),
            ("g", Arc::new(groups)),
            ("e0", column(random, &equal_types[0], probe_rows, 3)),
            ("e1", column(random, &equal_types[1], probe_rows, 2)),
            ("a", column(random, &key_type, probe_rows, 7)),
            ("b", column(random, &key_type, probe_rows, 7)),
            ("n", Arc::new(Int64Array::from(small(random, probe_rows)))),
        ];
        let config = SessionConfig::new()
            .with_target_partitions(PARALLELISM[random.below(4)])
            .with_batch_size(batch_size);
        let with = with_extension(SessionContext::new_with_config(config.clone()));
        let threads = PARALLELISM[random.below(4)].to_string();
        set(&with, "rmq.build_threads", &threads);
        draw_join_mode(&with, random);
        let without = SessionContext::new_with_config(config);
        let spread = random.below(2) == 0;
        for ctx in [&with, &without] {
            for (name, columns, rows) in [("p", &build, build_rows), ("q", &probe, probe_rows)] {
                let batches = [rows / 3, rows / 4];
                if spread {
                    register_partitions(ctx, name, columns, &batches);
                } else {
                    register(ctx, name, columns, &batches);
                }
            }
        }
        Self {
            with,
            without,
            key_type,
            equalities,
        }
    }

    /// A join condition of one range and of equality keys between `q` and `p`.
    fn condition(&self, random: &mut Random, recognised: bool) -> String {
        let key = if self.key_type.is_integer() && random.below(6) == 0 {
            "p.k % 1000".to_string()
        } else {
            "p.k".to_string()
        };
        let bound = |random: &mut Random, name: &str| match (&self.key_type, random.below(4)) {
            (DataType::Int64 | DataType::Int32, 0) => format!("q.{name} % 100 + q.n"),
            (DataType::Timestamp(..), 0) => {
                format!("q.{name} - INTERVAL '1 second'")
            }
            (DataType::Int8 | DataType::UInt16, 1) => format!("CAST(q.{name} AS BIGINT) + q.n"),
            // Bounds whose types differ from that of the key and from each other.
            (t, 2) if t.is_integer() => format!("CAST(q.{name} AS DOUBLE)"),
            (t, 3) if t.is_integer() => format!("CAST(q.{name} AS DECIMAL(25, 3)) + 0.5"),
            (DataType::Utf8 | DataType::Utf8View, 2) => format!("q.{name} || 'a'"),
            (DataType::Boolean, 2) => format!("coalesce(q.{name}, q.n > 0)"),
            _ => format!("q.{name}"),
        };
        let compare = |random: &mut Random, lower: bool, bound: &str| {
            let (op, swapped) = match (lower, random.below(2)) {
                (true, 0) => (">", "<"),
                (true, _) => (">=", "<="),
                (false, 0) => ("<", ">"),
                (false, _) => ("<=", ">="),
            };
            if random.below(3) == 0 {
                format!("{bound} {swapped} {key}")
            } else {
                format!("{key} {op} {bound}")
            }
        };
        let (a, b) = (bound(random, "a"), bound(random, "b"));
        let mut parts = match random.below(6) {
            0 | 1 => vec![format!("{key} BETWEEN {a} AND {b}")],
            2 => vec![compare(random, true, &a)],
            3 => vec![compare(random, false, &b)],
            4 => {
                let lower = random.below(2) == 0;
                vec![
                    compare(random, true, &a),
                    compare(random, lower, &b),
                    compare(random, false, &b),
                ]
            }
            _ => vec![compare(random, true, &a), compare(random, false, &b)],
        };
        for e in 0..self.equalities {
            parts.insert(random.below(2), format!("p.e{e} = q.e{e}"));
        }
        match random.below(12) {
            0 => parts.push("p.n > -3".to_string()),
            1 => parts.push("q.n < 3".to_string()),
            2 if !recognised => parts.push("p.n IS DISTINCT FROM q.n".to_string()),
            _ => {}
        }
        parts.join(" AND ")
    }

    /// An aggregate over columns of `p`.
    fn aggregate(random: &mut Random) -> String {
        let filter = match random.below(8) {
            0 => " FILTER (WHERE p.n > 0)",
            1 => " FILTER (WHERE p.v IS NULL)",
            _ => "",
        };
        let call = match random.below(34) {
            0..=2 => "min(p.v)",
            3 | 4 => "max(p.v)",
            5 => "min(p.n + 1)",
            6 => "max(p.s)",
            7 => "min(p.d)",
            8 => "min(p.f)",
            9 => "max(p.f)",
            10 | 11 => "count(*)",
            12 => "count(p.v)",
            13 => "count(p.n)",
            14 => "sum(p.n)",
            15 => "sum(p.d)",
            16 => "avg(p.n)",
            17 => "min(coalesce(p.n, 7))",
            18 => return "first_value(p.same_k ORDER BY p.k)".to_string(),
            19 => return "last_value(p.same_k ORDER BY p.k)".to_string(),
            20 => return "first_value(p.same_k ORDER BY p.k DESC)".to_string(),
            21 => return "first_value(p.same_v ORDER BY p.v)".to_string(),
            22 => return "first_value(p.same_v ORDER BY p.v DESC NULLS LAST)".to_string(),
            23 => return "first_value(p.same_v ORDER BY p.v DESC)".to_string(),
            24 => return "last_value(p.same_v ORDER BY p.v)".to_string(),
            25 | 26 => "avg(p.d)",
            27 => "sum(p.u)",
            28 => "avg(p.u)",
            29 => "sum(p.i)",
            30 => "sum(p.n * p.d)",
            31 => "sum(p.f)",
            32 => "avg(p.f)",
            _ => return "max(q.n)".to_string(),
        };
        format!("{call}{filter}")
    }

    /// An aggregate that has no index or prefix sum.
    fn accumulated(random: &mut Random) -> &'static str {
        [
            "median(p.n)",
            "median(p.d)",
            "count(DISTINCT p.n)",
            "count(DISTINCT p.s)",
            "sum(DISTINCT p.n)",
            "array_agg(p.n ORDER BY p.id)",
            "array_agg(p.s ORDER BY p.n DESC, p.id)",
            "sum(DISTINCT p.id)",
            "string_agg(p.s, ', ' ORDER BY p.id DESC)",
            "round(stddev(p.n), 6)",
            "round(corr(p.n, p.id), 6) + 0.0",
            "bit_and(p.n)",
            "bool_or(p.n > 0)",
            "nth_value(p.id, 2 ORDER BY p.id)",
            "first_value(p.id ORDER BY p.n, p.id)",
            "last_value(p.id ORDER BY p.k, p.id)",
            "approx_distinct(p.n)",
            "percentile_cont(p.n, 0.25)",
            "count(p.n, p.s)",
        ][random.below(19)]
    }

    /// The row nearest to an end of a range, as a correlated subquery or a lateral join, and by numbering all pairs.
    pub fn nearest(&self, random: &mut Random) -> (String, String) {
        let condition = self.condition(random, true);
        let condition = condition.replace("p.k % 1000", "p.k");
        // As doubles, several of these keys may be equal.
        let is_rounded = (condition.contains("DOUBLE") || condition.contains("DECIMAL"))
            && matches!(self.key_type, DataType::Int64 | DataType::UInt64);
        let probe = Self::probe(random);
        let descending = random.below(2) == 0;
        let (order, ties) = match (random.below(4), descending) {
            // Not the range key: the leftmost by the range key.
            (0, false) => ("p.n, p.k", "p.id"),
            (0, true) => ("p.n DESC NULLS LAST, p.k", "p.id"),
            (_, false) => ("p.k", "p.id"),
            (_, true) if is_rounded => ("p.k DESC", "p.id"),
            (_, true) => ("p.k DESC", "p.id DESC"),
        };
        // Of rows with equal `p.n`, conditions decide which is returned.
        let by_range_key = order.starts_with("p.k");
        let values = ["1", "arrow_typeof(p.n)", "coalesce(p.n, 7)", "p.n + q.n"];
        let single_values = ["p.v", "p.id", "p.s", "p.same_k"];
        let value = match by_range_key {
            true => [values, single_values].concat()[random.below(8)],
            false => values[random.below(4)],
        };
        let known = if by_range_key { "p.id" } else { "p.n" };
        // Which column is the range key then is open, and so are ties.
        let written = match is_rounded {
            true => format!("{order}, {ties}"),
            false => order.strip_suffix(", p.k").unwrap_or(order).to_owned(),
        };
        // Zeros of both signs are equal keys, but not equal in ORDER BY.
        // (In dictionaries they are neither.) A sum would make a signaling NaN a quiet one, which is greater.
        let order = match &self.key_type {
            float if float.is_floating() => {
                let zero = format!("arrow_cast(0.0, '{float}')");
                let key = format!("CASE WHEN p.k + 0.0 = 0.0 THEN {zero} ELSE p.k END");
                order.replace("p.k", &key)
            }
            _ => order.to_owned(),
        };
        let subquery = format!("FROM p WHERE {condition} ORDER BY {written} LIMIT 1");
        let numbered = format!(
            "(SELECT q.id, CASE WHEN p.id IS NOT NULL THEN {value} END AS x, p.id AS pid, {known} AS y, \
             row_number() OVER (PARTITION BY q.id ORDER BY {order}, {ties}) AS place FROM {probe} LEFT JOIN p ON {condition})"
        );
        match random.below(3) {
            0 => (
                format!("SELECT q.id, (SELECT {value} {subquery}) AS x FROM {probe}"),
                format!("SELECT id, x FROM {numbered} WHERE place = 1"),
            ),
            1 => (
                format!(
                    "SELECT q.id, l.x, l.y FROM {probe} CROSS JOIN LATERAL (SELECT {value} AS x, {known} AS y {subquery}) l"
                ),
                format!("SELECT id, x, y FROM {numbered} WHERE place = 1 AND pid IS NOT NULL"),
            ),
            _ => (
                format!(
                    "SELECT q.id, l.x, l.y FROM {probe} LEFT JOIN LATERAL (SELECT {value} AS x, {known} AS y {subquery}) l ON true"
                ),
                format!("SELECT id, x, y FROM {numbered} WHERE place = 1"),
            ),
        }
    }

    /// The probe side, with a unique `id` in each row; sometimes `p` itself.
    fn probe(random: &mut Random) -> &'static str {
        match random.below(8) {
            0 => "(SELECT id, n AS g, e0, e1, k AS a, same_k AS b, n FROM p) q",
            1 => "(SELECT q.* FROM q JOIN (SELECT DISTINCT n AS m FROM p) ON n = m) q",
            _ => "q",
        }
    }

    /// A count in a condition or an aggregate of the outer query, as a subquery and as a join.
    fn count_within(random: &mut Random, condition: &str) -> (String, String) {
        let (probe, counted) = (Self::probe(random), ["p.id", "p.n"][random.below(2)]);
        let count = format!("(SELECT count({counted}) FROM p WHERE {condition})");
        let joined = format!("FROM {probe} LEFT JOIN p ON {condition} GROUP BY q.id");
        if random.below(2) == 0 {
            (
                format!("SELECT q.id FROM {probe} WHERE {count} >= 2 OR q.id = 3"),
                format!("SELECT q.id {joined} HAVING count({counted}) >= 2 OR q.id = 3"),
            )
        } else {
            (
                format!("SELECT q.id % 2, sum({count}) FROM {probe} GROUP BY q.id % 2"),
                format!(
                    "SELECT id % 2, sum(c) FROM (SELECT q.id, count({counted}) AS c {joined}) GROUP BY id % 2"
                ),
            )
        }
    }

    /// The same aggregates as correlated subqueries or a lateral join, and as a left join whose row of NULLs they skip.
    pub fn correlated(&self, random: &mut Random) -> (String, String) {
        let condition = self.condition(random, true);
        if random.below(6) == 0 {
            return Self::count_within(random, &condition);
        }
        let probe = Self::probe(random);
        let mut aggregates: Vec<_> = (0..=random.below(3))
            .map(|_| match random.below(3) {
                0 => Self::accumulated(random).to_string(),
                _ => Self::aggregate(random),
            })
            .filter(|a| a != "max(q.n)")
            .collect();
        if aggregates.is_empty() {
            aggregates.push("count(*)".to_string());
        }
        let matched = aggregates
            .iter()
            .map(|a| match a.split_once(" FILTER (WHERE ") {
                Some((call, filter)) => {
                    format!("{call} FILTER (WHERE p.id IS NOT NULL AND {filter}")
                }
                None => match a.strip_prefix("round(").and_then(|a| a.split_once("), ")) {
                    Some((call, digits)) => {
                        format!("round({call}) FILTER (WHERE p.id IS NOT NULL), {digits}")
                    }
                    None => format!("{a} FILTER (WHERE p.id IS NOT NULL)"),
                },
            });
        let matched: Vec<_> = std::iter::once("q.id".to_string()).chain(matched).collect();
        let joined = format!(
            "SELECT {} FROM {probe} LEFT JOIN p ON {condition} GROUP BY q.id",
            matched.join(", ")
        );
        let correlated = if random.below(2) == 0 {
            let subqueries = aggregates
                .iter()
                .map(|a| format!("(SELECT {a} FROM p WHERE {condition})"));
            let columns: Vec<_> = std::iter::once("q.id".to_string())
                .chain(subqueries)
                .collect();
            format!("SELECT {} FROM {probe}", columns.join(", "))
        } else {
            let named = aggregates.iter().enumerate();
            let named: Vec<_> = named.map(|(i, a)| format!("{a} AS a{i}")).collect();
            let (kind, on) = [("CROSS JOIN", ""), ("LEFT JOIN", " ON true")][random.below(2)];
            let named = named.join(", ");
            let columns = (0..aggregates.len()).map(|i| format!(", x.a{i}"));
            format!(
                "SELECT q.id{} FROM {probe} {kind} LATERAL (SELECT {named} FROM p WHERE {condition}) x{on}",
                columns.collect::<String>()
            )
        };
        (correlated, joined)
    }

    /// A join with GROUP BY.
    pub fn grouped_join(&self, random: &mut Random) -> String {
        let condition = self.condition(random, false);
        let aggregates: Vec<_> = (0..=random.below(3))
            .map(|_| match random.below(4) {
                0 => Self::accumulated(random).to_string(),
                _ => Self::aggregate(random),
            })
            .collect();
        let named = aggregates.iter().enumerate();
        let named: Vec<_> = named.map(|(i, a)| format!("{a} AS a{i}")).collect();
        let probe = match random.below(6) {
            0 => "(SELECT * FROM q WHERE n > 0) q",
            1 => "(SELECT * FROM q UNION ALL SELECT * FROM q WHERE g = 1) q",
            _ => Self::probe(random),
        };
        let build = match random.below(9) {
            0 => "(SELECT * FROM p WHERE n IS NOT NULL) p",
            1 => "(SELECT p.* FROM p JOIN (SELECT DISTINCT n AS m FROM q) ON n = m) p",
            2 => "(SELECT * FROM p UNION ALL SELECT * FROM p WHERE n > 0) p",
            3 => "(SELECT * FROM p ORDER BY id DESC LIMIT 9) p",
            _ => "p",
        };
        // Sometimes a second range join above the first.
        let between = if random.below(8) == 0 {
            let left = ["", "LEFT "][random.below(2)];
            let condition = self.condition(random, false).replace("p.", "o.");
            format!(" {left}JOIN (SELECT * FROM p WHERE id % 4 = 0) o ON {condition}")
        } else {
            String::new()
        };
        let probe = format!("{probe}{between}");
        let from = match random.below(6) {
            0 | 1 => format!("{probe} JOIN {build} ON {condition}"),
            2 if between.is_empty() => format!("{build} JOIN {probe} ON {condition}"),
            3 if between.is_empty() => format!("{build} RIGHT JOIN {probe} ON {condition}"),
            _ => format!("{probe} LEFT JOIN {build} ON {condition}"),
        };
        let groups = match random.below(9) {
            0..=2 => "q.id",
            3 => "q.g",
            4 => "q.g, q.n",
            5 => "q.id, q.a",
            6 => "q.n % 2",
            7 => "ROLLUP (q.g, q.n)",
            _ => "",
        };
        let mut sql = String::from("SELECT ");
        if !groups.is_empty() && !groups.starts_with("ROLLUP") {
            write!(sql, "{groups}, ").expect("a String takes all");
        }
        write!(sql, "{} FROM {from}", named.join(", ")).expect("a String takes all");
        if !groups.is_empty() {
            write!(sql, " GROUP BY {groups}").expect("a String takes all");
            if random.below(8) == 0 {
                sql.push_str(" HAVING count(*) > 1");
            }
        }
        match random.below(10) {
            0 => format!("SELECT count(*), min(a0), count(a0) FROM ({sql})"),
            1 => format!(
                "WITH w AS ({sql}) SELECT * FROM w UNION ALL SELECT * FROM w WHERE a0 IS NULL"
            ),
            2 => format!("SELECT DISTINCT a0 FROM ({sql})"),
            3 => format!("SELECT a0, count(*) OVER (PARTITION BY a0) FROM ({sql})"),
            _ => sql,
        }
    }
}

/// As [`register`], with each batch in a separate partition.
pub fn register_partitions(
    ctx: &SessionContext,
    name: &str,
    columns: &[(&str, ArrayRef)],
    batches: &[usize],
) {
    let columns = columns
        .iter()
        .map(|(name, array)| (*name, Arc::clone(array), true));
    let whole = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length");
    let mut parts = vec![];
    let mut start = 0;
    for length in batches.iter().copied().chain([whole.num_rows()]) {
        let length = length.min(whole.num_rows() - start);
        parts.push(vec![whole.slice(start, length)]);
        start += length;
    }
    let table = MemTable::try_new(whole.schema(), parts).expect("batches of one schema");
    ctx.register_table(name, Arc::new(table))
        .expect("the table is new");
}

/// Decimals of a random type, either small or with sums that overflow. (DataFusion's AVG panics at negative scales.)
fn decimals(random: &mut Random, small: &[Option<i64>]) -> ArrayRef {
    let data_type = [
        DataType::Decimal32(5, 2),
        DataType::Decimal32(9, 0),
        DataType::Decimal64(5, 1),
        DataType::Decimal64(18, 3),
        DataType::Decimal128(12, 2),
        DataType::Decimal128(38, 4),
        DataType::Decimal128(25, 5),
        DataType::Decimal256(50, 1),
        DataType::Decimal256(76, 76),
    ][random.below(9)]
    .clone();
    let (precision, scale) = match data_type {
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => (p, s),
        DataType::Decimal128(p, s) | DataType::Decimal256(p, s) => (p, s),
        _ => unreachable!("all of them are decimals"),
    };
    let digits = if random.below(2) == 0 {
        u32::from(precision) - 1
    } else {
        1
    };
    let factor = i256::from_i128(10).wrapping_pow(digits);
    let values = small
        .iter()
        .map(|v| v.map(|v| i256::from(v).wrapping_mul(factor)));
    let wide: Decimal256Array = values.collect();
    let wide = wide
        .with_precision_and_scale(76, scale)
        .expect("a valid precision");
    cast(&wide, &data_type).expect("the values fit")
}

/// The rows as sorted lines of text.
pub fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut lines = vec![];
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|c| ArrayFormatter::try_new(c, &options).expect("types that can be shown"))
            .collect();
        lines.extend((0..batch.num_rows()).map(|row| {
            let cells = columns.iter().map(|c| c.value(row).to_string());
            cells.collect::<Vec<_>>().join(" | ")
        }));
    }
    lines.sort_unstable();
    lines
}

/// The sorted rows, and whether the plan has a range join.
pub async fn answer(ctx: &SessionContext, sql: &str) -> Result<(Vec<String>, bool)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let batches = collect(plan, ctx.task_ctx()).await?;
    Ok((lines(&batches), text.contains("RangeJoinExec")))
}

/// The outcomes of some queries.
#[derive(Debug, Default)]
struct Tally {
    asked: usize,
    rewritten: usize,
    refused: usize,
}

/// Runs queries over random tables on two threads. `query` returns one for the session with the extension and one for
/// the session without it.
fn compare(name: &str, query: impl Fn(&Tables, &mut Random) -> (String, String) + Sync) -> Tally {
    let seeds = cases_with_queries(name, &FAILED, CASES, QUERIES);
    let work = |seeds: &[u64]| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let mut tally = Tally::default();
        for seed in seeds {
            runtime.block_on(ask(*seed, &query, &mut tally));
        }
        tally
    };
    let (first, second) = seeds.split_at(seeds.len() / 2);
    let tallies = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(second));
        let tally = work(first);
        [tally, other.join().expect("the other half passes, too")]
    });
    let sum = |part: fn(&Tally) -> usize| tallies.iter().map(part).sum();
    let tally = Tally {
        asked: sum(|t| t.asked),
        rewritten: sum(|t| t.rewritten),
        refused: sum(|t| t.refused),
    };
    println!("{name}: {tally:?}");
    tally
}

/// Whether the error is that `DataFusion` refuses a correlated subquery, as it does if no rule of the extension
/// rewrites it.
pub fn is_refusal(error: &DataFusionError) -> bool {
    let message = error.to_string();
    [
        "ScalarSubquery",
        "OuterReferenceColumn",
        "decorrelate_lateral_join",
    ]
    .iter()
    .any(|refused| message.contains(refused))
}

async fn ask(
    seed: u64,
    query: &impl Fn(&Tables, &mut Random) -> (String, String),
    tally: &mut Tally,
) {
    let random = &mut Random::of_case(seed);
    let tables = Tables::new(random);
    for _ in 0..QUERIES {
        let (with, without) = query(&tables, random);
        tally.asked += 1;
        let expected = answer(&tables.without, &without).await;
        let found = answer(&tables.with, &with).await;
        match (expected, found) {
            (Ok((expected, _)), Ok((found, was_rewritten))) => {
                assert_eq!(found, expected, "tables of seed {seed}: {with}");
                tally.rewritten += usize::from(was_rewritten);
            }
            (Ok(_), Err(error)) if with != without && is_refusal(&error) => tally.refused += 1,
            (Ok(_), Err(error)) => panic!("tables of seed {seed}: {with}: {error}"),
            // An average with too many digits is an error of both sessions. (HAVING may drop the group first.)
            (Err(error), Ok(_)) if error.to_string().contains("Overflow in Avg") => {
                assert!(
                    with.contains("HAVING"),
                    "tables of seed {seed}: {with}: there is no error"
                );
                tally.refused += 1;
            }
            // Nothing to compare with if DataFusion does not accept the query.
            (Err(_), _) => tally.refused += 1,
        }
    }
}

#[test]
fn grouped_joins_agree_with_datafusion() {
    let tally = compare("joins with GROUP BY", |tables, random| {
        let sql = tables.grouped_join(random);
        (sql.clone(), sql)
    });
    assert!(
        tally.rewritten * 2 > tally.asked || !is_usual(),
        "{tally:?}"
    );
}

#[test]
fn correlated_subqueries_agree_with_joins() {
    let tally = compare("correlated subqueries", Tables::correlated);
    assert!(
        tally.rewritten * 2 > tally.asked || !is_usual(),
        "{tally:?}"
    );
}

#[test]
fn nearest_rows_agree_with_numbered_pairs() {
    let tally = compare("nearest rows", Tables::nearest);
    assert!(
        tally.rewritten * 2 > tally.asked || !is_usual(),
        "{tally:?}"
    );
}

/// A metric of the range joins of a plan.
pub fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let children = plan.children().into_iter().map(|child| metric(child, name));
    let metrics = plan.metrics().filter(|_| plan.name() == "RangeJoinExec");
    let own = metrics
        .and_then(|m| m.sum(|m| m.value().name() == name))
        .map_or(0, |v| v.as_usize());
    own + children.sum::<usize>()
}

/// A session whose memory pool has this many bytes, with 100,000 unsorted rows. It keeps nothing.
async fn small_pool(bytes: usize) -> (SessionContext, Arc<GreedyMemoryPool>) {
    let pool = Arc::new(GreedyMemoryPool::new(bytes));
    let ctx = session_of_pool(SessionConfig::new(), Arc::clone(&pool) as _);
    set(&ctx, "rmq.keep_indexes", "false");
    let tables = [
        "CREATE TABLE p AS SELECT value * 7919 % 100003 AS k, value AS v FROM range(0, 100000)",
        "CREATE TABLE q AS SELECT value AS id, value * 50 AS k FROM range(0, 1000)",
    ];
    for sql in tables {
        run(&ctx, sql).await.expect(sql);
    }
    (ctx, pool)
}

const LOWEST: &str = "SELECT count(*) AS n, sum(m) AS s FROM \
    (SELECT q.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN q.k AND q.k + 100) AS m FROM q)";

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_registered_and_released() {
    let (ctx, pool) = small_pool(64 << 20).await;
    let before = pool.reserved();
    let frame = ctx.sql(LOWEST).await.expect("a plan");
    let plan = frame.create_physical_plan().await.expect("a plan");
    let context = ctx.task_ctx();
    let batches = collect(Arc::clone(&plan), Arc::clone(&context)).await;
    assert_eq!(batches.expect("enough memory")[0].num_rows(), 1);
    // The build side is freed with the execution, although the plan still exists.
    assert_eq!(pool.reserved(), before);
    let used = metric(&plan, "build_mem_used");
    assert!(used >= 100_000 * 16, "{used} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_releases_its_memory() {
    let (ctx, pool) = small_pool(64 << 20).await;
    let before = pool.reserved();
    for micros in [0, 100, 1000, 5000, 20000] {
        let query = tokio::time::timeout(Duration::from_micros(micros), run(&ctx, LOWEST));
        let _ = query.await;
        // The current step of sorting or indexing can't be stopped.
        let mut waited = Duration::ZERO;
        while pool.reserved() > before {
            assert!(waited < Duration::from_secs(5), "{} bytes", pool.reserved());
            tokio::time::sleep(Duration::from_millis(5)).await;
            waited += Duration::from_millis(5);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_of_few_rows_with_many_are_left_to_datafusion() {
    let (ctx, _) = small_pool(64 << 20).await;
    let plan = |sql: &'static str| {
        let ctx = ctx.clone();
        async move { answer(&ctx, sql).await.expect(sql) }
    };
    let few =
        "SELECT q.id, min(v) FROM (SELECT * FROM q LIMIT 5) q JOIN p ON p.k < q.k GROUP BY q.id";
    let many = "SELECT q.id, min(v) FROM q JOIN p ON p.k < q.k AND q.id < 5 GROUP BY q.id";
    let ((few, few_rewritten), (many, many_rewritten)) = (plan(few).await, plan(many).await);
    assert_eq!(few, many);
    assert!(!few_rewritten && many_rewritten);
}

/// An aggregate without an index beside others does not make a join return its rows: the range join returns one row for
/// each probe row.
#[tokio::test]
async fn aggregates_without_an_index_leave_the_join_a_range_join() {
    let ctx = session();
    for sql in [
        "CREATE TABLE p AS SELECT value % 5 AS sym, value % 300 AS k, value % 7 AS v FROM range(0, 3000)",
        "CREATE TABLE q AS SELECT value % 6 AS sym, value AS id, value % 300 AS k FROM range(0, 900)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    for (aggregates, is_one_join) in [
        ("avg(p.v), stddev(p.v)", true),
        ("min(p.v), count(DISTINCT p.v)", true),
        (
            "max(p.v), array_agg(p.v ORDER BY p.v, p.k), median(p.v) FILTER (WHERE p.v > 2)",
            true,
        ),
        ("count(DISTINCT p.v)", false),
    ] {
        let sql = format!(
            "SELECT q.id % 50, {aggregates} FROM q LEFT JOIN p ON p.sym = q.sym AND p.k BETWEEN q.k - 50 AND q.k GROUP BY q.id % 50"
        );
        let frame = ctx.sql(&sql).await.expect(&sql);
        let plan = frame.create_physical_plan().await.expect(&sql);
        let found = collect(Arc::clone(&plan), ctx.task_ctx())
            .await
            .expect(&sql);
        assert_eq!(metric(&plan, "output_rows") == 900, is_one_join, "{sql}");
        set(&ctx, "rmq.rewrite", "false");
        let (expected, _) = answer(&ctx, &sql).await.expect(&sql);
        set(&ctx, "rmq.rewrite", "true");
        let rounded = |lines: Vec<String>| -> Vec<String> {
            // The last digits of a deviation depend on the order of additions.
            let cut = |cell: &str| match cell.parse::<f64>() {
                Ok(number) => format!("{number:.9}"),
                Err(_) => cell.to_string(),
            };
            let lines = lines
                .iter()
                .map(|l| l.split(" | ").map(cut).collect::<Vec<_>>().join(" | "));
            lines.collect()
        };
        assert_eq!(rounded(lines(&found)), rounded(expected), "{sql}");
    }
}

/// The schema of a join has the metadata of both sides, and operators above it may have been planned with that.
#[tokio::test]
async fn schema_metadata_is_preserved() {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    for name in ["p", "q"] {
        let metadata = |text: &str| HashMap::from([(format!("{name} {text}"), text.to_string())]);
        let field = |n: &str| Field::new(n, DataType::Int64, true).with_metadata(metadata(n));
        let fields = vec![field("id"), field("k"), field("e")];
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata("table")));
        let column = || Arc::new((0..30).map(|i| i * 7 % 30).collect::<Int64Array>()) as ArrayRef;
        let batch = RecordBatch::try_new(schema, vec![column(); 3]).expect("three columns");
        ctx.register_batch(name, batch).expect("a new table");
    }
    let grouped = |from: &str, group: &str| {
        format!(
            "SELECT {group} AS g, min(p.id) AS m, count(p.id) AS n FROM {from} GROUP BY {group}"
        )
    };
    let queries = [
        (grouped("q JOIN p ON p.k >= q.k", "q.id"), true),
        (
            grouped("q LEFT JOIN p ON p.k >= q.k AND p.e = q.e", "q.id"),
            true,
        ),
        (grouped("p RIGHT JOIN q ON p.k >= q.k", "q.id"), true),
        (grouped("p JOIN q ON p.k >= q.k", "q.e"), true),
        // The key of the other side has different metadata.
        (
            grouped("q JOIN p ON p.k >= q.k AND p.e = q.e", "p.e"),
            false,
        ),
    ];
    for (query, is_rewritten) in queries {
        for sql in [
            query.clone(),
            format!("SELECT n, max(m) FROM ({query}) GROUP BY n"),
            format!("{query} UNION SELECT id, k, e FROM q"),
            format!("SELECT * FROM ({query} UNION SELECT id, k, e FROM p) WHERE m IS NOT NULL"),
        ] {
            set(&ctx, "rmq.rewrite", "true");
            let (found, rewritten) = answer(&ctx, &sql).await.expect(&sql);
            let schema = run(&ctx, &sql).await.expect(&sql).schema();
            set(&ctx, "rmq.rewrite", "false");
            assert_eq!(found, answer(&ctx, &sql).await.expect(&sql).0, "{sql}");
            let expected = run(&ctx, &sql).await.expect(&sql).schema();
            assert_eq!(schema.metadata(), expected.metadata(), "{sql}");
            for (field, expected) in schema.fields().iter().zip(expected.fields()) {
                assert_eq!(field.metadata(), expected.metadata(), "{sql}");
            }
            assert_eq!(rewritten, is_rewritten, "{sql}");
        }
    }
}

#[tokio::test]
async fn the_example_of_plain_sql_runs() {
    let ctx = session();
    let example = include_str!("../../examples/plain_sql.sql");
    let mut range_joins = 0;
    for sql in example.split(";\n").filter(|sql| !sql.trim().is_empty()) {
        let (rows, is_range_join) = answer(&ctx, sql).await.expect(sql);
        if is_range_join {
            assert!(rows.len() > 2, "{sql}");
            range_joins += 1;
        }
    }
    assert_eq!(range_joins, 3);
}
