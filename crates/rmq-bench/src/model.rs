//! What reads cost on this device, and what our search would take if nothing but its reads limited it.

use rmq_engine::EngineError;

use rmq_bench::data::Data;
use rmq_bench::table::{Table, power_of_two, three_digits};
use rmq_bench::workload::Workload;

use crate::args::{ResultKind, Width};
use crate::lab::access::{AccessPattern, Reads};
use crate::lab::costs::{ReadShape, UnitCosts};
use crate::lab::device::{DeviceBounds, DeviceColumn, Lab};
use crate::lab::kernel::KernelUnderTest;
use crate::record::{Case, Record, Section, Setting};
use crate::report::{MODEL, MODEL_CACHES, MODEL_DRAM};
use crate::run::Run;

/// The model with the costs of this run's device, and the reads of all cases so far.
pub struct ReadModel {
    costs: UnitCosts,
    reads: Table,
}

impl ReadModel {
    /// Measures what reads cost.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(run: &mut Run, lab: &Lab) -> Result<Self, EngineError> {
        run.progress.now("GPU: what reads cost");
        let costs = lab.unit_costs(run.args.rounds)?;
        let header = ["ns", "L1 cache", "L2 cache", "memory"];
        let mut table = Table::new("What a read costs", header.map(str::to_owned));
        let ns = |seconds: f64| three_digits(seconds * 1e9);
        let dash = || "-".to_owned();
        table.row(
            "4 bytes, one thread",
            [ns(costs.l1_entry), ns(costs.entry.l2), ns(costs.entry.dram)],
        );
        for (name, cost) in [("64 bytes", costs.half), ("128 bytes", costs.line)] {
            table.row(name, [dash(), ns(cost.l2), ns(cost.dram)]);
        }
        let streamed = ns(costs.streamed_byte * 128.0);
        table.row("128 bytes, streamed", [dash(), dash(), streamed]);
        run.tables.push(table);
        let header = [
            "",
            "entries of the table",
            "requests to levels 2 and up",
            "to level 1",
            "to the column",
        ];
        let title = "Reads of ours a query, counted on the host";
        Ok(Self {
            costs,
            reads: Table::new(title, header.map(str::to_owned)),
        })
    }

    /// Computes the model of a case and keeps it beside the measurements.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn add(
        &mut self,
        run: &mut Run,
        lab: &Lab,
        case: Case,
        column: &DeviceColumn,
        (ours, bounds): (&KernelUnderTest, &DeviceBounds),
    ) -> Result<(), EngineError> {
        let pattern = lab.count_reads(column, ours, bounds)?;
        self.reads.row(
            format!("{}, {}", case.title(), power_of_two(case.n)),
            counts(&pattern).map(three_digits),
        );
        // Two bounds and a value.
        let streamed = if column.wide_positions { 20.0 } else { 12.0 };
        let model = self.costs.model(&pattern, streamed);
        let parts = [
            (MODEL_CACHES, model.caches),
            (MODEL_DRAM, model.dram),
            (MODEL, model.sum()),
        ];
        for (contender, seconds) in parts {
            run.found(record(Section::Limit, case, contender, 1, seconds));
        }
        Ok(())
    }

    /// Puts the counted reads into the report.
    pub fn finish(self, run: &mut Run) {
        if !self.reads.is_empty() {
            run.tables.push(self.reads);
        }
    }
}

/// Returns the reads a query of the table, of levels 2 and up, of level 1 and of the column.
fn counts(pattern: &AccessPattern) -> [f64; 4] {
    let chunks = |reads: &Reads| reads.halves + reads.lines;
    let level = |k: usize| pattern.levels.get(k).map_or(0.0, chunks);
    [
        pattern.arrays().fold(0.0, |sum, reads| sum + reads.entries),
        pattern
            .levels
            .iter()
            .skip(2)
            .fold(0.0, |sum, reads| sum + chunks(reads)),
        level(1),
        level(0),
    ]
}

fn record(
    section: Section,
    case: Case,
    contender: &str,
    queries: u64,
    seconds_each: f64,
) -> Record {
    Record {
        section,
        case,
        contender: contender.to_owned(),
        setting: Setting::default(),
        queries,
        threads: 0,
        seconds: seconds_each * queries as f64,
        build_seconds: None,
        index_bytes: None,
        build_bytes: 0,
        wrong: 0,
    }
}

/// Threads of a group in the paper's figure of coalesced reads.
const GROUPS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// The number of steps of [`measure_groups`].
pub const GROUP_STEPS: usize = 2 * GROUPS.len();

/// Measures random reads of groups of threads, each thread 4 bytes, from the L2 cache and from the device's memory.
///
/// # Errors
/// Those of the driver.
pub fn measure_groups(run: &mut Run, lab: &Lab) -> Result<(), EngineError> {
    let memory = lab.random_memory()?;
    let header = [
        "threads of a group",
        "L2 cache, ns",
        "GB/s",
        "memory, ns",
        "GB/s",
    ];
    let title = "Random reads of groups of threads, 4 bytes a thread";
    let mut table = Table::new(title, header.map(str::to_owned));
    for group in GROUPS {
        let mut cells = Vec::new();
        for (place, bytes) in [("L2 cache", 16 << 20), ("memory", memory.bytes())] {
            run.progress
                .now(&format!("GPU: reads of {group} threads, {place}"));
            let shape = ReadShape {
                group,
                width: 4,
                cached: false,
            };
            let seconds = lab.random_read(&memory, bytes, shape, run.args.rounds)?;
            let n = (bytes / 4).ilog2();
            let case = Case::new(
                Width::U32,
                Data::Constant,
                ResultKind::Value,
                Workload::Large,
                n,
            );
            let mut found = record(Section::Reads, case, place, 1 << 26, seconds);
            found.setting.group = group;
            run.found(found);
            run.progress.done();
            cells.push(three_digits(seconds * 1e9));
            cells.push(three_digits(f64::from(group * 4) / seconds / 1e9));
        }
        table.row(group.to_string(), cells);
    }
    run.tables.push(table);
    Ok(())
}
