//! Tables of the measurements.

use std::collections::{BTreeMap, BTreeSet};

use rmq_bench::data::Data;
use rmq_bench::table::{Table, power_of_two, three_digits};
use rmq_bench::workload::Workload;

use crate::args::Kernel;
use crate::record::{Case, Record, Section};
use rmq_bench::kinds::{ResultKind, Width};

/// Among contenders, a kernel that reads the two lines which hold the ends of a range.
pub const TWO_READS: &str = "two random reads of 128 bytes";

/// Names a kernel among contenders.
pub fn on_gpu(kernel: Kernel) -> String {
    format!("GPU, {}", kernel.name())
}

/// A case without the length of the column.
type GroupKey = (Width, Data, ResultKind, Workload);

fn group_key(case: Case) -> GroupKey {
    (case.key, case.data, case.result, case.workload)
}

/// The records of one or two sections whose cases differ only in the length of the column.
struct Group<'a> {
    title: String,
    key: GroupKey,
    /// Lengths of the column, as powers of two.
    sizes: BTreeSet<u32>,
    /// In the order of their first records.
    contenders: Vec<&'a str>,
    records: Vec<&'a Record>,
}

impl Group<'_> {
    fn find(&self, contender: &str, n: u32) -> Option<&Record> {
        let mut records = self.records.iter();
        records
            .find(|record| record.contender == contender && record.case.n == n)
            .copied()
    }

    fn ns(&self, contender: &str, n: u32) -> Option<f64> {
        self.find(contender, n).map(Record::ns_per_query)
    }

    /// A table of all contenders' nanoseconds per query.
    fn ns_table(&self, title: &str) -> Table {
        let title = format!("{title}: {}", self.title);
        let mut table = Table::new(title, header("", &self.sizes));
        for contender in &self.contenders {
            let cells = self.sizes.iter();
            table.row(*contender, cells.map(|n| or_dash(self.ns(contender, *n))));
        }
        table
    }
}

fn groups<'a>(records: &'a [Record], sections: &[Section]) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<GroupKey, Group<'_>> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|record| sections.contains(&record.section))
    {
        let case = &record.case;
        let group = groups.entry(group_key(*case)).or_insert_with(|| Group {
            title: case.title(),
            key: group_key(*case),
            sizes: BTreeSet::new(),
            contenders: Vec::new(),
            records: Vec::new(),
        });
        group.sizes.insert(case.n);
        if !group.contenders.contains(&record.contender.as_str()) {
            group.contenders.push(&record.contender);
        }
        group.records.push(record);
    }
    groups.into_values().collect()
}

fn header(first: &str, sizes: &BTreeSet<u32>) -> Vec<String> {
    std::iter::once(first.to_owned())
        .chain(sizes.iter().map(|n| power_of_two(*n)))
        .collect()
}

fn or_dash(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), three_digits)
}

/// Computes all tables.
pub fn tables(records: &[Record]) -> Vec<Table> {
    let mut tables = Vec::new();
    let searches = groups(records, &[Section::Limit, Section::Search, Section::Rays]);
    let heat_maps = groups(records, &[Section::Heat]);
    for group in &searches {
        let heat_map = heat_maps.iter().find(|heat| heat.key == group.key);
        tables.push(search(group, heat_map));
    }
    tables.extend(ratios(&searches));
    let mut seen = BTreeSet::new();
    for group in &searches {
        // Indexes do not depend on the ranges.
        let (key, data, result, _) = group.key;
        if seen.insert((key, data, result)) {
            tables.extend(build_and_memory(group));
        }
    }
    for group in groups(records, &[Section::Queuing]) {
        tables.push(group.ns_table("Warp-local queuing, ns a query"));
    }
    for group in &heat_maps {
        tables.extend(group.sizes.iter().map(|n| heat(group, *n)));
    }
    for group in groups(records, &[Section::Readers]) {
        tables.push(group.ns_table("Ours by who reads the levels above the column, ns a query"));
    }
    for group in groups(records, &[Section::Succinct]) {
        let title = "Succinct indexes on the CPU, million queries a second";
        tables.extend(group.sizes.iter().map(|n| by_threads(title, &group, *n)));
    }
    tables.extend(succinct_indexes(records));
    tables
}

/// Nanoseconds per query of each contender, and ratios of our kernel to the others.
fn search(group: &Group<'_>, heat_map: Option<&Group<'_>>) -> Table {
    let mut table = group.ns_table("ns a query");
    let ours = on_gpu(Kernel::Ours);
    let by_reads = |n: &u32| Some(group.ns(&ours, *n)? / group.ns(TWO_READS, *n)?);
    let by_paper = |n: &u32| {
        let paper = [Kernel::Cl, Kernel::Vl, Kernel::VlOneSided];
        let times = paper
            .iter()
            .filter_map(|kernel| group.ns(&on_gpu(*kernel), *n));
        let better = times.reduce(f64::min)?;
        Some(better / group.ns(&ours, *n)?)
    };
    let mut ratio = |name: &str, ratio: &dyn Fn(&u32) -> Option<f64>| {
        let cells: Vec<_> = group.sizes.iter().map(ratio).collect();
        if cells.iter().any(Option::is_some) {
            table.row(name, cells.into_iter().map(or_dash));
        }
    };
    let by_best = |n: &u32| {
        let tuned = heat_map?.records.iter().filter(|one| one.case.n == *n);
        let best = tuned.map(|one| one.ns_per_query()).reduce(f64::min)?;
        Some(best / group.ns(&ours, *n)?)
    };
    ratio("ours: times two random reads", &by_reads);
    ratio(
        "ours: times faster than the better of CL and VL, paper's parameters",
        &by_paper,
    );
    ratio("ours: times faster than the best of the heat map", &by_best);
    table
}

/// Ratios of our kernel's times to its time for the value of f32 and mixed ranges; none where that was not measured.
fn ratios(groups: &[Group<'_>]) -> Option<Table> {
    let ours = on_gpu(Kernel::Ours);
    let sizes: BTreeSet<u32> = groups
        .iter()
        .flat_map(|group| group.sizes.clone())
        .collect();
    let mut table = Table::new(
        "Ours on the GPU: times the time for the value of f32, mixed ranges, same data",
        header("", &sizes),
    );
    for group in groups {
        let (key, data, result, workload) = group.key;
        let base = (Width::U32, data, ResultKind::Value, Workload::Mixed);
        if group.key == base {
            continue;
        }
        let Some(base) = groups.iter().find(|group| group.key == base) else {
            continue;
        };
        let ratio = |n: &u32| Some(group.ns(&ours, *n)? / base.ns(&ours, *n)?);
        let cells: Vec<_> = sizes.iter().map(ratio).collect();
        if cells.iter().any(Option::is_some) {
            let name = format!(
                "{}, {}, {}, {}",
                result.name(),
                key.name(),
                workload.name(),
                data.name()
            );
            table.row(name, cells.into_iter().map(or_dash));
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Build times and sizes of indexes.
fn build_and_memory(group: &Group<'_>) -> Vec<Table> {
    let (key, data, result, _) = group.key;
    let purpose = format!(
        "for the {} of {} {} values",
        result.name(),
        data.name(),
        key.name()
    );
    let mut build = Table::new(format!("Build, ms, {purpose}"), header("", &group.sizes));
    let mut index = Table::new(
        format!("Index, percent of the column, {purpose}"),
        header("", &group.sizes),
    );
    let mut total = Table::new(
        format!("Memory in all, MB, {purpose}: column, index, and what only the build needs"),
        header("", &group.sizes),
    );
    for contender in &group.contenders {
        let total_mb = |n: &u32| Some(group.find(contender, *n)?.total_bytes()? as f64 / 1e6);
        let totals: Vec<_> = group.sizes.iter().map(total_mb).collect();
        if totals.iter().any(Option::is_some) {
            total.row(*contender, totals.into_iter().map(or_dash));
        }
        let build_ms = |n: &u32| Some(group.find(contender, *n)?.build_seconds? * 1e3);
        let percent = |n: &u32| Some(group.find(contender, *n)?.overhead()? * 100.0);
        let numbers: Vec<_> = group.sizes.iter().map(build_ms).collect();
        if numbers.iter().flatten().any(|number| *number > 0.0) {
            build.row(*contender, numbers.into_iter().map(or_dash));
            index.row(*contender, group.sizes.iter().map(percent).map(or_dash));
        }
    }
    let tables = [build, index, total].into_iter();
    tables.filter(|table| !table.is_empty()).collect()
}

/// Queries per second by number of threads.
fn by_threads(title: &str, group: &Group<'_>, n: u32) -> Table {
    let records = group.records.iter().filter(|record| record.case.n == n);
    let threads: BTreeSet<u32> = records.map(|record| record.threads).collect();
    let header = std::iter::once("threads".to_owned()).chain(threads.iter().map(u32::to_string));
    let mut table = Table::new(format!("{title}: {}, n = 2^{n}", group.title), header);
    for contender in &group.contenders {
        let cell = |threads: &u32| {
            let mut records = group.records.iter();
            let found = records.find(|record| {
                record.case.n == n && record.threads == *threads && record.contender == *contender
            });
            or_dash(found.map(|record| 1e3 / record.ns_per_query()))
        };
        table.row(*contender, threads.iter().map(cell));
    }
    table
}

/// Build times and sizes of the succinct indexes.
fn succinct_indexes(records: &[Record]) -> Option<Table> {
    let header = ["", "build, ms", "index, MB", "bits a value"];
    let title = "Succinct indexes on the CPU: the index";
    let mut table = Table::new(title, header.map(str::to_owned));
    let mut seen = BTreeSet::new();
    for record in records {
        let (contender, n) = (&record.contender, record.case.n);
        if record.section != Section::Succinct || !seen.insert((contender, record.case.key, n)) {
            continue;
        }
        let bytes = record.index_bytes.unwrap_or_default() as f64;
        let key = record.case.key.name();
        table.row(
            format!("{contender}, {key}, {}", power_of_two(n)),
            [
                or_dash(record.build_seconds.map(|seconds| seconds * 1e3)),
                three_digits(bytes / 1e6),
                three_digits(bytes * 8.0 / record.case.rows() as f64),
            ],
        );
    }
    (!table.is_empty()).then_some(table)
}

/// Nanoseconds per query of CL over sizes of groups and chunks, and of VL over those of chunks.
fn heat(group: &Group<'_>, n: u32) -> Table {
    let records = || group.records.iter().filter(|record| record.case.n == n);
    let rows: BTreeSet<(&str, u32)> = records()
        .map(|record| (record.contender.as_str(), record.setting.group))
        .collect();
    let best = records().map(|one| one.ns_per_query()).reduce(f64::min);
    let chunk_sizes: BTreeSet<u32> = records().map(|record| record.setting.chunk).collect();
    let title = format!(
        "GPU-RMQ, ns a query, in brackets times the best: {}, n = {}",
        group.title,
        power_of_two(n)
    );
    let header = std::iter::once("threads of a group \\ entries of a chunk".to_owned());
    let mut table = Table::new(title, header.chain(chunk_sizes.iter().map(u32::to_string)));
    for (contender, group) in rows {
        let cell = |chunk: &u32| {
            let found = records().find(|record| {
                let setting = record.setting;
                record.contender == contender && (setting.group, setting.chunk) == (group, *chunk)
            });
            let ns = found.map(|record| record.ns_per_query());
            let (Some(ns), Some(best)) = (ns, best) else {
                return "-".to_owned();
            };
            format!("{} ({:.2})", three_digits(ns), ns / best)
        };
        let name = match contender {
            "CL" => format!("CL, {group}"),
            _ => contender.to_owned(),
        };
        table.row(name, chunk_sizes.iter().map(cell));
    }
    table
}
