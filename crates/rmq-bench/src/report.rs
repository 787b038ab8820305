//! Tables and plots out of what was measured.

use std::collections::{BTreeMap, BTreeSet};

use crate::args::{Kernel, Wanted, Width};
use crate::plots::{self, Heat, Line, Lines, Plot};
use crate::record::{Case, Record, Section};
use crate::table::{Table, power, short};
use crate::workload::Workload;

/// The name of the limit among contenders.
pub const LIMIT: &str = "limit: two 128-byte reads";

/// What to call a kernel of the GPU.
pub fn on_gpu(kernel: Kernel) -> String {
    format!("GPU, {}", kernel.name())
}

/// A case without the length of the column.
type Question = (Width, crate::data::Data, Wanted, Workload);

fn question(case: Case) -> Question {
    (case.key, case.data, case.wanted, case.workload)
}

/// Records of a section by question; of each the lengths of columns and the contenders, as they came.
struct Group<'a> {
    title: String,
    name: String,
    question: Question,
    sizes: BTreeSet<u32>,
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

    /// A line of a number of each record of a contender.
    fn line(&self, contender: &str, number: impl Fn(&Record) -> Option<f64>) -> Line {
        let points = self.sizes.iter();
        let points = points.filter_map(|n| Some((*n, number(self.find(contender, *n)?)?)));
        Line {
            name: contender.to_owned(),
            points: points.collect(),
            dashed: contender == LIMIT,
        }
    }
}

fn groups<'a>(records: &'a [Record], sections: &[Section]) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<Question, Group<'_>> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|record| sections.contains(&record.section))
    {
        let case = &record.case;
        let group = groups.entry(question(*case)).or_insert_with(|| Group {
            title: case.title(),
            name: format!(
                "{}-{}-{}-{}",
                case.wanted.name(),
                case.workload.name(),
                case.key.name(),
                case.data.name()
            ),
            question: question(*case),
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

fn head(first: &str, sizes: &BTreeSet<u32>) -> Vec<String> {
    std::iter::once(first.to_owned())
        .chain(sizes.iter().map(|n| power(*n)))
        .collect()
}

fn or_dash(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), short)
}

/// All tables of what was measured.
pub fn tables(records: &[Record]) -> Vec<Table> {
    let mut tables = Vec::new();
    let searches = groups(records, &[Section::Limit, Section::Search]);
    for group in &searches {
        tables.push(speed(group));
    }
    tables.extend(ratios(&searches));
    let mut seen = BTreeSet::new();
    for group in &searches {
        // Indexes are the same whatever the ranges.
        let (key, data, wanted, _) = group.question;
        if seen.insert((key, data, wanted)) {
            tables.extend(cost(group));
        }
    }
    for group in groups(records, &[Section::Queuing]) {
        let mut table = Table::new(
            format!("Warp-local queuing, ns a query: {}", group.title),
            head("", &group.sizes),
        );
        for contender in &group.contenders {
            table.row(
                *contender,
                group.sizes.iter().map(|n| or_dash(group.ns(contender, *n))),
            );
        }
        tables.push(table);
    }
    for heat in heats(records) {
        let mut table = Table::new(
            heat.title.clone(),
            std::iter::once("group \\ chunk".to_owned())
                .chain(heat.columns.iter().map(u32::to_string)),
        );
        for (row, group) in heat.rows.iter().enumerate() {
            let cell = |column: usize| {
                let mut cells = heat.cells.iter();
                let found = cells.find(|cell| (cell.0, cell.1) == (column, row));
                or_dash(found.map(|cell| cell.2))
            };
            table.row(group.to_string(), (0..heat.columns.len()).map(cell));
        }
        tables.push(table);
    }
    for group in groups(records, &[Section::Trip]) {
        for n in &group.sizes {
            tables.push(trip(&group, *n));
        }
    }
    tables
}

/// Nanoseconds of each contender, and how ours stands to the others.
fn speed(group: &Group<'_>) -> Table {
    let mut table = Table::new(
        format!("ns a query: {}", group.title),
        head("", &group.sizes),
    );
    for contender in &group.contenders {
        table.row(
            *contender,
            group.sizes.iter().map(|n| or_dash(group.ns(contender, *n))),
        );
    }
    let ours = on_gpu(Kernel::Ours);
    let by_limit = |n: &u32| Some(group.ns(&ours, *n)? / group.ns(LIMIT, *n)?);
    let by_paper = |n: &u32| {
        let (cl, vl) = (
            group.ns(&on_gpu(Kernel::Cl), *n),
            group.ns(&on_gpu(Kernel::Vl), *n),
        );
        let better = cl.into_iter().chain(vl).reduce(f64::min)?;
        Some(better / group.ns(&ours, *n)?)
    };
    let mut ratio = |name: &str, of: &dyn Fn(&u32) -> Option<f64>| {
        let cells: Vec<_> = group.sizes.iter().map(of).collect();
        if cells.iter().any(Option::is_some) {
            table.row(name, cells.into_iter().map(or_dash));
        }
    };
    ratio("ours: times the limit", &by_limit);
    ratio("ours: times faster than the better of CL and VL", &by_paper);
    table
}

/// How our kernel's times for other questions stand to those of the value of f32, mixed.
fn ratios(groups: &[Group<'_>]) -> Option<Table> {
    let ours = on_gpu(Kernel::Ours);
    let sizes: BTreeSet<u32> = groups
        .iter()
        .flat_map(|group| group.sizes.clone())
        .collect();
    let mut table = Table::new(
        "Ours on the GPU: times the time for the value of f32, mixed ranges, same data",
        head("", &sizes),
    );
    for group in groups {
        let (key, data, wanted, workload) = group.question;
        let base = (Width::U32, data, Wanted::Value, Workload::Mixed);
        if group.question == base {
            continue;
        }
        let Some(base) = groups.iter().find(|group| group.question == base) else {
            continue;
        };
        let of = |n: &u32| Some(group.ns(&ours, *n)? / base.ns(&ours, *n)?);
        let cells: Vec<_> = sizes.iter().map(of).collect();
        if cells.iter().any(Option::is_some) {
            let name = format!(
                "{}, {}, {}, {}",
                wanted.name(),
                key.name(),
                workload.name(),
                data.name()
            );
            table.row(name, cells.into_iter().map(or_dash));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// What indexes take to build and to keep.
fn cost(group: &Group<'_>) -> Vec<Table> {
    let (key, data, wanted, _) = group.question;
    let of = format!(
        "for the {} of {} {} values",
        wanted.name(),
        data.name(),
        key.name()
    );
    let mut build = Table::new(format!("Build, ms, {of}"), head("", &group.sizes));
    let mut index = Table::new(
        format!("Index, percent of the column, {of}"),
        head("", &group.sizes),
    );
    for contender in &group.contenders {
        let taken = |n: &u32| Some(group.find(contender, *n)?.build_seconds? * 1e3);
        let kept = |n: &u32| Some(group.find(contender, *n)?.overhead()? * 100.0);
        let numbers: Vec<_> = group.sizes.iter().map(taken).collect();
        if numbers.iter().flatten().any(|number| *number > 0.0) {
            build.row(*contender, numbers.into_iter().map(or_dash));
            index.row(*contender, group.sizes.iter().map(kept).map(or_dash));
        }
    }
    let tables = [build, index].into_iter();
    tables.filter(|table| !table.rows.is_empty()).collect()
}

/// Queries a second by threads.
fn trip(group: &Group<'_>, n: u32) -> Table {
    let records = group.records.iter().filter(|record| record.case.n == n);
    let threads: BTreeSet<u32> = records.map(|record| record.threads).collect();
    let head = std::iter::once("threads".to_owned()).chain(threads.iter().map(u32::to_string));
    let mut table = Table::new(
        format!(
            "Host to host, million queries a second: {}, n = 2^{n}",
            group.title
        ),
        head,
    );
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

/// CL over groups and chunks, for each length of column.
fn heats(records: &[Record]) -> Vec<Heat> {
    let mut heats = Vec::new();
    for group in groups(records, &[Section::Heat]) {
        for n in &group.sizes {
            let records = || group.records.iter().filter(|record| record.case.n == *n);
            let unique = |of: &dyn Fn(&Record) -> u32| {
                let all: BTreeSet<u32> = records().map(|record| of(record)).collect();
                all.into_iter().collect::<Vec<_>>()
            };
            let columns = unique(&|record| record.setting.chunk);
            let rows = unique(&|record| record.setting.group);
            let place = |all: &[u32], one: u32| all.iter().position(|other| *other == one);
            let cells = records().filter_map(|record| {
                Some((
                    place(&columns, record.setting.chunk)?,
                    place(&rows, record.setting.group)?,
                    record.ns_per_query(),
                ))
            });
            heats.push(Heat {
                title: format!(
                    "GPU-RMQ (CL), ns a query: {}, n = {}",
                    group.title,
                    plots::power(*n)
                ),
                x: "entries of a chunk".to_owned(),
                y: "threads of a group".to_owned(),
                cells: cells.collect(),
                columns,
                rows,
            });
        }
    }
    heats
}

/// All plots, each with the name of its files.
pub fn plots(records: &[Record]) -> Vec<(String, Plot)> {
    let mut plots = Vec::new();
    let x = || "values of the column".to_owned();
    let searches = groups(records, &[Section::Limit, Section::Search]);
    let mut seen = BTreeSet::new();
    for group in &searches {
        let lines = |number: &dyn Fn(&Record) -> Option<f64>| {
            let lines = group.contenders.iter();
            let lines = lines.map(|contender| group.line(contender, number));
            let lines: Vec<_> = lines.filter(|line| !line.points.is_empty()).collect();
            lines
        };
        let plot = Lines {
            title: capital(&group.title),
            x: x(),
            y: "ns a query".to_owned(),
            log: true,
            lines: lines(&|record| Some(record.ns_per_query())),
            ..Lines::default()
        };
        plots.push((format!("search-{}", group.name), Plot::Lines(plot)));

        let (key, data, wanted, _) = group.question;
        if !seen.insert((key, data, wanted)) {
            continue;
        }
        let of = format!("{} of {} {} values", wanted.name(), data.name(), key.name());
        let file = format!("{}-{}-{}", wanted.name(), key.name(), data.name());
        let taken = |record: &Record| {
            let seconds = record.build_seconds?;
            (seconds > 0.0).then_some(seconds * 1e3)
        };
        let build = Lines {
            title: format!("Build an index for the {of}"),
            x: x(),
            y: "ms".to_owned(),
            log: true,
            lines: lines(&taken),
            ..Lines::default()
        };
        plots.push((format!("build-{file}"), Plot::Lines(build)));
        let kept = |record: &Record| {
            record
                .overhead()
                .filter(|part| *part > 0.0)
                .map(|part| part * 100.0)
        };
        let memory = Lines {
            title: format!("Memory of an index for the {of}"),
            x: x(),
            y: "percent of the column".to_owned(),
            lines: lines(&kept),
            ..Lines::default()
        };
        plots.push((format!("memory-{file}"), Plot::Lines(memory)));
    }
    for group in groups(records, &[Section::Queuing]) {
        let lines = group.contenders.iter();
        let lines =
            lines.map(|contender| group.line(contender, |record| Some(record.ns_per_query())));
        let plot = Lines {
            title: format!("GPU-RMQ (CL): {}", group.title),
            x: x(),
            y: "ns a query".to_owned(),
            lines: lines.collect(),
            ..Lines::default()
        };
        plots.push((format!("queuing-{}", group.name), Plot::Lines(plot)));
    }
    for (i, heat) in heats(records).into_iter().enumerate() {
        plots.push((format!("heat-{}", i + 1), Plot::Heat(heat)));
    }
    for group in groups(records, &[Section::Trip]) {
        for n in &group.sizes {
            plots.push((
                format!("trip-{}-2^{n}", group.name).replace('^', "p"),
                Plot::Lines(trip_plot(&group, *n)),
            ));
        }
    }
    for group in groups(records, &[Section::Crossover]) {
        for n in &group.sizes {
            plots.push((
                format!("crossover-{}-2^{n}", group.name).replace('^', "p"),
                Plot::Lines(crossover_plot(&group, *n)),
            ));
        }
    }
    plots.retain(|(_, plot)| match plot {
        Plot::Lines(lines) => lines.lines.iter().any(|line| !line.points.is_empty()),
        Plot::Heat(heat) => !heat.cells.is_empty(),
    });
    plots
}

fn trip_plot(group: &Group<'_>, n: u32) -> Lines {
    let line = |contender: &&str| {
        let records = group.records.iter();
        let records = records.filter(|record| record.case.n == n && record.contender == *contender);
        let point = |record: &&Record| {
            let two_to = record.threads.is_power_of_two();
            two_to.then(|| (record.threads.ilog2(), 1.0 / record.ns_per_query()))
        };
        Line {
            name: (*contender).to_owned(),
            points: records.filter_map(point).collect(),
            dashed: false,
        }
    };
    Lines {
        title: format!("Host to host: {}, n = {}", group.title, plots::power(n)),
        x: "threads that ask".to_owned(),
        y: "billion queries a second".to_owned(),
        plain_x: true,
        lines: group.contenders.iter().map(line).collect(),
        ..Lines::default()
    }
}

fn crossover_plot(group: &Group<'_>, n: u32) -> Lines {
    let line = |contender: &&str| {
        let records = group.records.iter();
        let records = records.filter(|record| record.case.n == n && record.contender == *contender);
        let points = records.map(|record| (record.queries.ilog2(), record.seconds * 1e6));
        Line {
            name: (*contender).to_owned(),
            points: points.collect(),
            dashed: false,
        }
    };
    Lines {
        title: format!("Time of a batch: {}, n = {}", group.title, plots::power(n)),
        x: "queries".to_owned(),
        y: "microseconds".to_owned(),
        log: true,
        lines: group.contenders.iter().map(line).collect(),
        ..Lines::default()
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}
